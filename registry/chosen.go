package registry

// chosen tells an observer, if there is one, what a request got: once for each answer that was not ready.
func (q *query) chosen(c *candidate) {
	if obs := q.r.observer.Load(); obs == nil || *obs == nil {
		return
	}
	e := Event{Kind: EventChosen, Op: q.op, OpName: q.d.Name, Device: q.c.slot.dev, Kernel: c.g.p.Kernel, Provider: c.g.p.Name,
		Priority: c.score.Priority, Signature: q.sig.String(), Score: c.score.String(), Source: "heuristic"}
	if q.p != nil {
		e.Platform = q.p.String()
	}
	switch {
	case c.named:
		e.Source = "override"
		e.Detail = q.choice.from + " wants " + q.choice.target.String()
	case c.oracle != "":
		e.Source = c.oracle // "measured", or another oracle's name
	}
	q.tell(e)
}
