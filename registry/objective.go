package registry

import (
	"fmt"
	"strings"
)

// Objective says what a request wants most of the kernels that could serve it.
type Objective uint8

// Objectives. The deterministic ones and debug leave kernels out; the others only rank.
const (
	ObjectiveDefault        Objective = iota
	ObjectiveLatency                  // measured data where there is some, else kernels tagged latency
	ObjectiveThroughput               // measured data where there is some, else kernels tagged throughput
	ObjectivePortability              // kernels tagged portability, and those that require nothing of the device
	ObjectiveDeterminism              // only kernels that promise the same bits from run to run
	ObjectiveBatchInvariant           // only kernels whose rows have the same bits alone and in a batch
	ObjectiveDebug                    // only deterministic kernels, those with the reference's bits first
)

var objectives = [...]string{"default", "latency", "throughput", "portability", "determinism", "batch_invariant", "debug"}

// String returns the lower-case name.
func (o Objective) String() string { return objectives[min(o, ObjectiveDebug)] }

// MarshalText is String.
func (o Objective) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText is ParseObjective.
func (o *Objective) UnmarshalText(b []byte) (err error) {
	*o, err = ParseObjective(string(b))
	return err
}

// ParseObjective reads a name; "" is the default. ErrArgument.
func ParseObjective(s string) (Objective, error) {
	for i, n := range objectives {
		if n == s || s == "" {
			return Objective(i), nil
		}
	}
	return 0, fmt.Errorf("registry: objective %q is not one of %s: %w", clip(s), strings.Join(objectives[:], " "), ErrArgument)
}

// deterministic reports a promise of equal bits from run to run.
func (g *Registration) deterministic() bool {
	t := &g.p.Traits
	return !t.Nondeterministic && (t.BatchInvariant || t.BitExact || g.p.Spec != nil && g.p.Spec.Determinism != "")
}

func (g *Registration) batchInvariant() bool {
	return g.p.Traits.BatchInvariant || g.p.Spec != nil && g.p.Spec.Determinism == BatchInvariant
}

// refuses says why a kernel is left out for the objective; "" if it is not.
func (o Objective) refuses(g *Registration) string {
	switch o {
	case ObjectiveDeterminism, ObjectiveDebug:
		if !g.deterministic() {
			return "promises no equal bits from run to run"
		}
	case ObjectiveBatchInvariant:
		if !g.batchInvariant() {
			return "is not batch-invariant"
		}
	}
	return ""
}

// favours is the objective's part of a score: 0 or 1.
func (o Objective) favours(g *Registration) int {
	switch o {
	case ObjectiveLatency:
		return b2i(g.tagged(TagLatency))
	case ObjectiveThroughput:
		return b2i(g.tagged(TagThroughput))
	case ObjectivePortability:
		return b2i(g.tagged(TagPortability) || g.p.Supports == nil && (g.p.Spec == nil || g.p.Spec.Requires.Conditions() == 0))
	case ObjectiveDebug:
		return b2i(g.p.Traits.BitExact)
	}
	return 0
}

func (g *Registration) tagged(t Tag) bool {
	if g.p.Spec != nil {
		for _, have := range g.p.Spec.Tags {
			if have == t {
				return true
			}
		}
	}
	return false
}
