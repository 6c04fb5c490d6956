class RunReport:
    def __init__(self, engine, run, steps): self.e=engine; self.n=0
    def __enter__(self): return self
    def __exit__(self,*a): pass
    def batch(self, loss):
        e=self.e; m=e.measured; p=e.plan; self.n+=1
        if e.global_rank==0 and (self.n<4 or self.n%10==0): print(self.n, f"{loss:.4f} it {m.iteration*1e3:.1f}ms ex {m.executed*1e3:.1f} wait {m.waited*1e3:.1f} bubble {m.bubble:.3f} pred {p.iteration*1e3:.1f} {p.makespan*1e3:.1f} {p.schedule} {p.kind} {p.reason}", flush=True)
    def end(self, accuracy):
        if self.e.global_rank==0: print("acc",accuracy, self.e.plans.statistics())
