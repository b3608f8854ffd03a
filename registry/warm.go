package registry

import (
	"context"
	"fmt"
)

// WarmLevel says how far Queue.Warm goes.
type WarmLevel uint8

// Levels.
const (
	WarmResolve WarmLevel = iota // select, so that no first call searches
	WarmLoad                     // and run the outstanding self-tests of every kernel of each selection, which loads and compiles what they need
)

// Warmed is the outcome for one request.
type Warmed struct {
	Request     Request
	Selection   *Selection // nil with Err
	Err         error      // the selection's, or the winner's failed self-test, after which another selection stands
	CaptureSafe bool       // every kernel that a call may reach can be recorded into a graph
}

// Warm prepares requests for calls on q. One outcome for each request, in order; the error is ctx's alone.
func (q *Queue) Warm(ctx context.Context, level WarmLevel, requests ...Request) ([]Warmed, error) {
	out := make([]Warmed, 0, len(requests))
	for _, req := range requests {
		if err := ctx.Err(); err != nil {
			return out, fmt.Errorf("registry: warm-up: %w", err)
		}
		w := Warmed{Request: req}
		w.Selection, w.Err = q.Select(req)
		if w.Err == nil && level >= WarmLoad {
			tested := false
			for i := range w.Selection.c.steps {
				s := &w.Selection.c.steps[i]
				if s.guard&guardTest == 0 {
					continue
				}
				if tested = true; !s.believed(q) && w.Err == nil {
					w.Err = s.test.failure(q)
				}
			}
			if tested { // the chains know the verdicts now
				again, err := q.Select(req)
				if w.Selection = again; err != nil {
					w.Err = err
				}
			}
		}
		if w.Selection != nil {
			w.CaptureSafe = true
			for i := range w.Selection.c.steps {
				s := &w.Selection.c.steps[i]
				w.CaptureSafe = w.CaptureSafe && s.guard&(guardCapture|guardBorrowed) == 0
			}
		}
		out = append(out, w)
	}
	return out, nil
}

// TestHeads runs the outstanding self-tests of the kernels that the first calls of ops on q will reach: of each chain the
// head, and the ones behind it as far as a kernel takes only some sizes of calls or fails its test. So no first call pays
// for them. A kernel that fails is quarantined, as at a first call; ops that q cannot serve are passed over.
func (q *Queue) TestHeads(ops ...Op) {
	for _, op := range ops {
		c, err := q.chain(op)
		if err != nil {
			continue
		}
		for i := range c.steps {
			s := &c.steps[i]
			if right := s.guard&guardTest == 0 || s.believed(q); right && !s.g.domain.sized() {
				break
			}
		}
	}
}

// sized reports whether the domain restricts what changes from call to call.
func (dom *domain) sized() bool {
	if dom == nil {
		return false
	}
	for i := range dom.derived {
		if dom.derived[i].def.Dynamic {
			return true
		}
	}
	return false
}
