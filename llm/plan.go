package llm

import (
	"fmt"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/tensor"
)

// Plan is the memory that a model will take on its device, in bytes. It is known before anything is allocated.
type Plan struct {
	Device    tensor.Device `json:"device"`
	Weights   int64         `json:"weights"`   // as the device will hold them
	Mapped    int64         `json:"mapped"`    // weights that stay in the mapped file
	KV        int64         `json:"kv"`        // the paged cache for ContextLength positions
	Workspace int64         `json:"workspace"` // activations of one chunk, and logits
	Total     int64         `json:"total"`
	Available int64         `json:"available"` // what the device says is free, 0 if it does not know
	Context   int           `json:"context"`
	Chunk     int           `json:"chunk"`
	KVType    string        `json:"kv_type"`
}

// String returns one line for people.
func (p Plan) String() string {
	s := fmt.Sprintf("memory on %v: weights %s + kv %s (%d positions, %s) + workspace %s = %s", p.Device, mib(p.Weights),
		mib(p.KV), p.Context, p.KVType, mib(p.Workspace), mib(p.Total))
	if p.Mapped > 0 {
		s += fmt.Sprintf(", %s more stay in the mapped file", mib(p.Mapped))
	}
	if p.Available > 0 {
		s += fmt.Sprintf("; %s available", mib(p.Available))
	}
	return s
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// check returns an error wrapping ErrMemory if the plan does not fit in limit (or, without one, in what is available).
func (p Plan) check(limit int64) error {
	what := "limit"
	if limit == 0 {
		limit, what = p.Available, "available memory"
	}
	if limit > 0 && p.Total > limit {
		return fmt.Errorf("llm: %v, more than the %s of %s; a shorter context or a smaller chunk needs less: %w", p, what, mib(limit), ErrMemory)
	}
	return nil
}

func makePlan(dev device.Device, c Config, o Options, loads []load) (Plan, error) {
	p := Plan{Device: dev.ID(), Available: dev.Caps().Memory.Available, Context: o.ContextLength, Chunk: o.ChunkSize, KVType: o.KVType.String()}
	for i := range loads {
		n, err := loads[i].bytes(dev)
		if err != nil {
			return p, fmt.Errorf("llm: %w", err)
		}
		if n == 0 {
			m, _ := loads[i].parts[0].Bytes()
			p.Mapped += m
		}
		p.Weights += n
	}
	row, err := o.KVType.RowBytes(int64(c.KVHeads * c.HeadSize))
	if err != nil {
		return p, fmt.Errorf("llm: KV cache: %w", err)
	}
	p.KV = row * 2 * int64(c.Layers) * int64(blocks(o.ContextLength)*o.MaxSequences) * BlockSize
	p.Workspace = engineShapes(c, o).bytes()
	p.Total = p.Weights + p.KV + p.Workspace
	return p, nil
}
