package recipe

import (
	"fmt"
	"strings"
	"sync"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Prepared is a recipe that was checked and is ready to run. It does not change and is safe for concurrent use.
type Prepared struct {
	recipe   Recipe
	residual int // slot, -1 for none
	full     plan
	bare     plan // of a call whose residual is not bound
}

// plan is the ways to run a recipe.
type plan [numTiers]way

// way is one of them.
type way struct {
	why   string // why there is none
	needs []int  // slots that must be bound
	ops   []registry.Op
	calls func() []call
	pool  sync.Pool // of *frame
}

// frame is what one run works with.
type frame struct {
	binding
	calls []call
}

// Prepare checks r and makes it ready. The error is Validate's. What r points to is copied.
func Prepare(r Recipe) (*Prepared, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	r.Operands, r.Steps = append([]Slot(nil), r.Operands...), append([]Step(nil), r.Steps...)
	p := &Prepared{recipe: r, residual: -1}
	for i, s := range r.Operands {
		if s.Kind == Residual {
			p.residual = i
		}
	}
	p.plan(&p.full, r.Steps, nil, "")
	if p.residual >= 0 {
		steps, from, why := r.bare()
		p.plan(&p.bare, steps, from, why)
	}
	return p, nil
}

// Recipe returns what p was made from. It is not to be changed.
func (p *Prepared) Recipe() Recipe { return p.recipe }

// plan fills pl with the ways to run steps, which are the recipe's steps of the numbers from, or all of them; why says that
// there are none but the fast op.
func (p *Prepared) plan(pl *plan, steps []Step, from []int, why string) {
	r := &p.recipe
	bare := pl == &p.bare
	composite, interpreter, quick := &pl[Composite], &pl[Interpreter], &pl[Fast]

	parts, compositeWhy := []part(nil), why
	if why == "" {
		parts, compositeWhy = r.parts(steps)
	}
	for i := range parts {
		if from != nil {
			parts[i].at = from[parts[i].at]
		}
	}
	composite.set(compositeWhy, func() (calls []call) {
		for _, part := range parts {
			calls = append(calls, part.call())
		}
		return calls
	})
	if r.Steps[0].Op == AttnQKNormRopeGate {
		composite.needs = []int{0, 1, 2, 3, 4, 5, 6, 7}
	}
	for _, part := range parts {
		for _, in := range part.In[:part.Op.Inputs()] {
			composite.need(int(in))
		}
		for slot := range r.Operands {
			if part.Op != AttnQKNormRopeGate && writes(part.Step, uint8(slot)) {
				composite.need(slot)
			}
		}
	}

	interpreterWhy := why
	if why == "" {
		interpreterWhy = r.chain(steps)
		if interpreterWhy == "" && bare {
			if err := ops.CheckChain(steps, false); err != nil {
				interpreterWhy = err.Error()
			}
		}
	}
	residual := !bare && p.residual == ops.ChainResidual
	interpreter.set(interpreterWhy, func() []call { return []call{chainCall(steps, residual)} })
	interpreter.needs = []int{ops.ChainX, ops.ChainWeight, ops.ChainOut}

	f, ok := fasts[r.Fast]
	if !ok {
		quick.why = "the recipe names none"
		return
	}
	quick.set("", func() []call { return []call{f.record(r)} })
	quick.needs = f.needs
}

// set gives w its calls, or the reason why it has none.
func (w *way) set(why string, calls func() []call) {
	if w.why = why; why != "" {
		return
	}
	w.calls = calls
	for _, c := range calls() {
		w.ops = append(w.ops, c.op)
	}
	w.pool.New = func() any { return &frame{calls: calls()} }
}

func (w *way) need(slot int) {
	for _, n := range w.needs {
		if n == slot {
			return
		}
	}
	w.needs = append(w.needs, slot)
}

// missing returns a slot that w needs and that is not bound, -1 for none.
func (w *way) missing(operands []tensor.Tensor) int {
	for _, slot := range w.needs {
		if !operands[slot].Present() {
			return slot
		}
	}
	return -1
}

// bind finds the plan for operands.
func (p *Prepared) bind(q *registry.Queue, operands []tensor.Tensor) (*plan, error) {
	if q == nil {
		return nil, fmt.Errorf("recipe %s: queue: %w", p.recipe.Name, registry.ErrNil)
	}
	if len(operands) != len(p.recipe.Operands) {
		return nil, fmt.Errorf("recipe %s: %d operands, not %d: %w", p.recipe.Name, len(operands), len(p.recipe.Operands), ErrOperands)
	}
	if p.residual >= 0 && !operands[p.residual].Present() {
		return &p.bare, nil
	}
	return &p.full, nil
}

// Run executes a call on q by the way that Plan names. operands has one tensor for each slot; an absent one (the zero Tensor)
// is legal for the residual, and then nothing is added, and for an intermediate that the way does not need. Every op of the
// way has validated its part before the first one is launched; only bad values in a tensor are found later. Run allocates
// nothing.
//
// Errors: registry.ErrNil without a queue, ErrOperands, ErrTier if no way is left, and those of ops.Op.Launch.
func (p *Prepared) Run(q *registry.Queue, operands []tensor.Tensor, params Params) error {
	pl, err := p.bind(q, operands)
	if err != nil {
		return err
	}
	return p.run(pl, p.choose(pl, q, operands, &params, nil), q, operands, &params)
}

// RunTier is Run by the given way, whatever Plan would say. ErrTier if the recipe has no such way.
func (p *Prepared) RunTier(q *registry.Queue, t Tier, operands []tensor.Tensor, params Params) error {
	pl, err := p.bind(q, operands)
	if err != nil {
		return err
	}
	if t >= numTiers {
		return fmt.Errorf("recipe %s: tier %d: %w", p.recipe.Name, t, ErrTier)
	}
	return p.run(pl, t, q, operands, &params)
}

// Plan says by which way Run would execute a call and why not by another.
func (p *Prepared) Plan(q *registry.Queue, operands []tensor.Tensor, params Params) (Choice, error) {
	pl, err := p.bind(q, operands)
	if err != nil {
		return Choice{}, err
	}
	c := Choice{Recipe: p.recipe.Name, Device: q.Device()}
	c.Tier = p.choose(pl, q, operands, &params, &c)
	for t := Fast; ; t-- {
		for _, op := range pl[t].ops {
			use := Use{Op: op.String()}
			if h, ok := q.Head(op); ok {
				use.Kernel, use.Tier = h.Kernel, h.Tier.String()
			}
			c.Ways[Fast-t].Ops = append(c.Ways[Fast-t].Ops, use)
		}
		if t == Composite {
			return c, nil
		}
	}
}

// Choice is what Plan found, ready for encoding/json.
type Choice struct {
	Recipe string        `json:"recipe"`
	Device tensor.Device `json:"device"`
	Tier   Tier          `json:"tier"`
	Ways   [numTiers]Way `json:"ways"` // in the order in which they are considered: fast, interpreter, composite
}

// Way is one of the ways that were considered.
type Way struct {
	Tier   Tier   `json:"tier"`
	Chosen bool   `json:"chosen"`
	Why    string `json:"why"`           // why it was not chosen, or what speaks for it
	Ops    []Use  `json:"ops,omitempty"` // what it launches, in order
}

// Use is an op and the kernel at the head of its chain, "" if there is none.
type Use struct {
	Op     string `json:"op"`
	Kernel string `json:"kernel,omitempty"`
	Tier   string `json:"tier,omitempty"` // the kernel's
}

// String is the choice in a line, then each way in one.
func (c Choice) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %v: %v\n", c.Recipe, c.Device, c.Tier)
	for _, w := range c.Ways {
		mark := "-"
		if w.Chosen {
			mark = "*"
		}
		fmt.Fprintf(&b, "  %s %v: %s", mark, w.Tier, w.Why)
		for i, u := range w.Ops {
			sep := ", "
			if i == 0 {
				sep = "; "
			}
			kernel := u.Kernel
			if kernel == "" {
				kernel = "no kernel"
			}
			fmt.Fprintf(&b, "%s%s (%s)", sep, u.Op, kernel)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// choose climbs down the ladder. It tells tell, if that is not nil, why it passes a way over.
func (p *Prepared) choose(pl *plan, q *registry.Queue, operands []tensor.Tensor, params *Params, tell *Choice) Tier {
	chosen := Composite
	for t := Fast; ; t-- {
		why, taken := p.verdict(pl, t, q, operands, params, tell != nil)
		if tell != nil {
			tell.Ways[Fast-t] = Way{Tier: t, Why: why}
		}
		if taken || t == Composite {
			chosen = t
			break
		}
	}
	if tell == nil {
		return chosen
	}
	tell.Ways[Fast-chosen].Chosen = true
	for t := chosen - 1; t < numTiers; t-- { // unsigned: ends below Composite
		tell.Ways[Fast-t] = Way{Tier: t, Why: "not asked"}
		if pl[t].why != "" {
			tell.Ways[Fast-t].Why = pl[t].why
		}
	}
	return chosen
}

// verdict says whether a way is to be taken, and why or why not. Reasons that must be put together are left out unless full is
// set.
func (p *Prepared) verdict(pl *plan, t Tier, q *registry.Queue, operands []tensor.Tensor, params *Params, full bool) (why string, taken bool) {
	w := &pl[t]
	if w.why != "" {
		return w.why, false
	}
	if t == Interpreter && !params.Interpreter {
		return "not switched on (Params.Interpreter)", false
	}
	if slot := w.missing(operands); slot >= 0 {
		if full {
			why = fmt.Sprintf("slot %d (%s) is not bound", slot, p.recipe.Operands[slot].Name)
		}
		return why, false
	}
	if t == Composite {
		return "what is left", true
	}
	head, ok := q.Head(w.ops[0])
	if !ok {
		return "no kernel", false
	}
	if t == Interpreter {
		return "every step is row-wise, and it is switched on", true
	}
	f := fasts[p.recipe.Fast]
	if why := f.refuses(operands); why != "" {
		return why, false
	}
	switch head.Tier {
	case registry.Borrowed:
		return "the device has no kernel of its own, only one of the CPU", false
	case registry.Reference:
		if op, better := p.better(pl, q, operands); better {
			if full {
				why = fmt.Sprintf("only the reference has it, and the composite has a faster %v", op)
			}
			return why, false
		}
		return "the reference has it in one pass, and the composite has nothing faster", true
	}
	return "the device has a kernel of its own", true
}

// better returns an op of the composite whose kernel is faster than the reference's, if the composite can run at all.
func (p *Prepared) better(pl *plan, q *registry.Queue, operands []tensor.Tensor) (faster registry.Op, ok bool) {
	w := &pl[Composite]
	if w.why != "" || w.missing(operands) >= 0 {
		return 0, false
	}
	for _, op := range w.ops {
		h, there := q.Head(op)
		if !there {
			return 0, false
		}
		if h.Tier < registry.Reference {
			faster, ok = op, true
		}
	}
	return faster, ok
}

// run executes a call by one way.
func (p *Prepared) run(pl *plan, t Tier, q *registry.Queue, operands []tensor.Tensor, params *Params) error {
	w := &pl[t]
	if w.why != "" {
		return fmt.Errorf("recipe %s: %v: %s: %w", p.recipe.Name, t, w.why, ErrTier)
	}
	if slot := w.missing(operands); slot >= 0 {
		return fmt.Errorf("recipe %s: %v: slot %d (%s) is not bound: %w", p.recipe.Name, t, slot, p.recipe.Operands[slot].Name, ErrOperands)
	}
	f := w.pool.Get().(*frame)
	copy(f.t[:], operands)
	f.p = *params
	if f.p.Eps == 0 {
		f.p.Eps = 1e-6
	}
	if f.p.QuantScale == 0 {
		f.p.QuantScale = 1
	}
	failed, err := f.run(q)
	f.binding = binding{}
	for i := range f.calls {
		f.calls[i].fill(&f.binding) // keeps nobody's memory
	}
	w.pool.Put(f)
	if err != nil && failed >= 0 {
		return fmt.Errorf("recipe %s: %v: step %d: %w", p.recipe.Name, t, failed, err)
	} else if err != nil {
		return fmt.Errorf("recipe %s: %v: %w", p.recipe.Name, t, err)
	}
	return nil
}

// run launches the calls in order, none before all are known to be valid and to have a kernel. It returns the step that failed,
// -1 for all of them together.
func (f *frame) run(q *registry.Queue) (failed int, err error) {
	for i := range f.calls {
		c := &f.calls[i]
		c.fill(&f.binding)
		if err := ops.Validate(c.op, c.args, q.Device()); err != nil {
			return c.at, err
		}
		if _, ok := q.Head(c.op); !ok && len(f.calls) > 1 {
			return c.at, fmt.Errorf("%v on %v: %w", c.op, q.Device(), ops.ErrNoKernel)
		}
	}
	for i := range f.calls {
		c := &f.calls[i]
		if err := ops.Launch(q, c.op, c.args); err != nil {
			return c.at, err
		}
	}
	return 0, nil
}
