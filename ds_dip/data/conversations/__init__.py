"""Datasets of conversations with images, videos and sounds, read by their metadata first.

Records of all common forms become one normal form; an index tells every sample's sizes without decoding anything.
"""

from __future__ import annotations

from ds_dip.data.conversations.conversation import Conversation, Media, Turn
from ds_dip.data.conversations.dataset import Conversations

__all__ = ["Conversation", "Conversations", "Media", "Turn"]
