package ops

import (
	"fmt"
	"reflect"
	"sync"
	"unsafe"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// Op is one operation of the catalogue with argument record R. Its methods are safe for concurrent use as far as the
// queues are. There is one exported variable for each op; other values of this type are of no use.
type Op[R any] struct{ core }

// core is what an op is without its record's type.
type core struct {
	desc   registry.Descriptor
	name   string
	once   sync.Once
	parsed *spec

	schemaOnce sync.Once
	traits     *registry.Schema

	pool sync.Pool // of records, as unsafe.Pointer, cleared

	check func(args unsafe.Pointer) *OpError // what the tags cannot say; nil if they say all
	noop  func(args unsafe.Pointer) bool     // the call does nothing though outputs have elements; nil: never
	alt   func(args unsafe.Pointer) *core    // the op that the call becomes, with the same record layout, or nil; nil: never
}

// all lists the ops of this package in the order of their definition, byID by number.
var (
	all  []*core
	byID [endOfOps]*core
)

// init fills tables: the registry's and byID. Tags are read when an op is first used.
func init() {
	for _, c := range all {
		registry.Describe(c.desc)
		byID[c.desc.Op] = c
	}
}

// What is generic over records is compiled once for each of them, under a name that holds the record's fields and tags: in
// a program such an instance weighs some kilobytes. So methods of Op do no more than erase the type, what can do without
// it belongs to core, and helpers take a pointer P to the record, of which all instances share one body.

// define makes an op. check sees records whose operands have passed; it may be nil. aliases are the names that other projects
// know the op by.
func define[R any](id registry.Op, name, family, mode, doc string, check func(a *R) *OpError, aliases ...string) *Op[R] {
	o := &Op[R]{}
	if check != nil {
		o.check = erased(check)
	}
	o.describe(id, name, family, mode, doc, reflect.TypeOf((*R)(nil)).Elem())
	o.desc.Aliases = aliases
	return o
}

// erased is check without the record's type; P points to it.
func erased[P any](check func(a P) *OpError) func(args unsafe.Pointer) *OpError {
	return func(args unsafe.Pointer) *OpError { return check(*(*P)(unsafe.Pointer(&args))) }
}

// describe gives c its descriptor and its place in the list.
func (c *core) describe(id registry.Op, name, family, mode, doc string, record reflect.Type) {
	c.fill(id, name, family, mode, doc, record)
	all = append(all, c)
}

func (c *core) fill(id registry.Op, name, family, mode, doc string, record reflect.Type) {
	c.name = name
	c.desc = registry.Descriptor{Op: id, Name: name, Family: family, Mode: mode, Doc: doc, Record: record}
	c.desc.Validate = func(args unsafe.Pointer, dev tensor.Device) error { return c.validate(args, dev) }
	c.desc.Load = func() []registry.Operand { return c.spec().list }
	c.desc.LoadSchema = c.schema
	c.pool.New = func() any { return reflect.New(record).UnsafePointer() }
}

// DescriptorOf describes an op of one's own for registry.Registry.Define, from a record whose tensors have the tags of this
// package's records: op:"in", shape:"T,H", dtype:"float", layout:"rows" and so on. The descriptor has the operands, the
// schema for selection, and a validator that checks every record by the rules of the catalogue before check, which may be
// nil, sees it. The error says what is wrong with a tag.
func DescriptorOf[R any](name, family, mode, doc string, check func(a *R) *OpError) (registry.Descriptor, error) {
	var f func(unsafe.Pointer) *OpError
	if check != nil {
		f = erased(check)
	}
	return descriptorOf(name, family, mode, doc, reflect.TypeOf((*R)(nil)).Elem(), f)
}

func descriptorOf(name, family, mode, doc string, record reflect.Type, check func(unsafe.Pointer) *OpError) (d registry.Descriptor, err error) {
	defer func() {
		if e := recover(); e != nil { // compile's, for a tag
			err = fmt.Errorf("ops: %s: %v: %w", name, e, registry.ErrSignature)
		}
	}()
	if record.Kind() != reflect.Struct {
		return d, fmt.Errorf("ops: %s: record %v is no struct: %w", name, record, registry.ErrSignature)
	}
	c := &core{check: check}
	c.fill(0, name, family, mode, doc, record)
	return c.Descriptor(), nil
}

// spec returns the compiled tags.
func (c *core) spec() *spec {
	c.once.Do(func() { c.parsed = compile(c.desc.Record) })
	return c.parsed
}

// ID returns the op's number.
func (c *core) ID() registry.Op { return c.desc.Op }

// Name returns the op's name, as in the catalogue.
func (c *core) Name() string { return c.name }

// Descriptor returns the op's contract as data.
func (c *core) Descriptor() registry.Descriptor {
	d := c.desc
	d.Operands = c.spec().list
	s := c.schema()
	d.Roles, d.Traits, d.Operators = s.Roles, s.Traits, s.Operators
	return d
}

// Validate checks everything about a call on dev that can be known without reading tensor data: ranks, shapes, dtypes,
// layouts, devices and attributes. The error is an *OpError. Nothing is allocated for a call that passes.
func (o *Op[R]) Validate(a *R, dev tensor.Device) error {
	return o.validateTarget(unsafe.Pointer(a), dev)
}

func (c *core) validateTarget(args unsafe.Pointer, dev tensor.Device) error {
	return c.target(args).validate(args, dev)
}

// Call validates and launches a call whose record is copied into one of the op's own, so that a may be a composite
// literal. Launch, with a record that the caller keeps, is cheaper.
func (o *Op[R]) Call(q *registry.Queue, a R) error {
	p := (*R)(o.pool.Get().(unsafe.Pointer))
	*p = a
	err := o.Launch(q, p)
	var zero R
	*p = zero
	o.pool.Put(unsafe.Pointer(p))
	return err
}

// Launch validates a and launches it on q. The record must stay untouched until Launch returns, its tensors' memory until
// the queue has done the work. A call whose outputs are all empty is valid or not like any other, but launches nothing.
//
// Errors: *OpError for a rejected call or a bad value that a kernel met; the registry's for the rest (ErrNoKernel when no
// provider serves the op on q's device).
func (o *Op[R]) Launch(q *registry.Queue, a *R) error {
	return o.launchTarget(q, unsafe.Pointer(a))
}

func (c *core) launchTarget(q *registry.Queue, args unsafe.Pointer) error {
	if q == nil || args == nil {
		return fmt.Errorf("%s: queue or record: %w", c.name, registry.ErrNil)
	}
	return c.target(args).launch(q, args)
}

// Launch validates and launches a call of any op that q's registry knows, for callers that learn the op at run time.
// args points to its record. Errors are those of Op.Launch, and registry.ErrUnknownOp.
func Launch(q *registry.Queue, op registry.Op, args unsafe.Pointer) error {
	if int(op) < len(byID) && byID[op] != nil {
		return byID[op].target(args).launch(q, args)
	}
	d, ok := q.Registry().Describe(op)
	if ok && d.Validate != nil {
		if err := d.Validate(args, q.Device()); err != nil {
			return err
		}
	}
	return q.Launch(op, args)
}

// Validate is Op.Validate for an op of this package that the caller learns at run time. args points to its record.
// registry.ErrUnknownOp.
func Validate(op registry.Op, args unsafe.Pointer, dev tensor.Device) error {
	if int(op) < len(byID) && byID[op] != nil {
		return byID[op].validateTarget(args, dev)
	}
	return fmt.Errorf("ops: op %d: %w", op, registry.ErrUnknownOp)
}

func (c *core) launch(q *registry.Queue, args unsafe.Pointer) error {
	if err := c.validate(args, q.Device()); err != nil {
		return err
	}
	if c.idle(args) {
		return nil
	}
	return q.Launch(c.desc.Op, args)
}

// target returns the op that the call is for: c, or what its record turns it into.
func (c *core) target(args unsafe.Pointer) *core {
	if c.alt != nil {
		if t := c.alt(args); t != nil {
			return t
		}
	}
	return c
}

// Bind looks the op's chain up once for many launches on q.
func (o *Op[R]) Bind(q *registry.Queue) (*Bound[R], error) {
	b, err := o.bind(q)
	if err != nil {
		return nil, err
	}
	return &Bound[R]{b, o}, nil
}

func (c *core) bind(q *registry.Queue) (*registry.Bound, error) {
	if q == nil {
		return nil, fmt.Errorf("%s: queue: %w", c.name, registry.ErrNil)
	}
	return q.Bind(c.desc.Op)
}

// Bound is an op bound to a queue. Later changes of the registry stay effective. The embedded handle explains the chain.
type Bound[R any] struct {
	*registry.Bound
	op *Op[R]
}

// Launch is Op.Launch on the bound queue.
func (b *Bound[R]) Launch(a *R) error {
	return b.op.launchBound(b.Bound, unsafe.Pointer(a))
}

func (c *core) launchBound(b *registry.Bound, args unsafe.Pointer) error {
	if t := c.target(args); t != c {
		return t.launch(b.Queue(), args)
	}
	if err := c.validate(args, b.Queue().Device()); err != nil {
		return err
	}
	if c.idle(args) {
		return nil
	}
	return b.Launch(args)
}

// LaunchValidated is Launch without the validator, for a record that has passed it and whose metadata did not change.
// A record of MatmulBT must not have a block dtype here: bind MatmulBTQuant for those.
func (b *Bound[R]) LaunchValidated(a *R) error {
	args := unsafe.Pointer(a)
	if b.op.idle(args) {
		return nil
	}
	return b.Bound.Launch(args)
}

// Provider is a provider whose launcher takes the op's own record.
type Provider[R any] struct {
	registry.OpProvider // name, priority, tier, traits ...; Fn and Record are filled in by Register

	// Fn runs the call. Its record has passed the validator and has at least one output element. Bad data inside a tensor
	// is answered with a.Fail(&OpError{Kind: ErrValue, ...}).
	Fn func(q *registry.Queue, a *R) registry.Status
}

// Register adds a provider for op o on devices of a kind. Errors are those of Registry.RegisterOpProvider.
func Register[R any](r *registry.Registry, o *Op[R], kind tensor.Kind, p Provider[R]) (*registry.Registration, error) {
	return o.register(r, kind, &p.OpProvider, registry.Erase(p.Fn))
}

func (c *core) register(r *registry.Registry, kind tensor.Kind, p *registry.OpProvider, fn registry.Launcher) (*registry.Registration, error) {
	q := *p
	q.Fn, q.Record = fn, c.desc.Record
	return r.RegisterOpProvider(c.desc.Op, kind, q)
}
