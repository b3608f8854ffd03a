package registry

import (
	"maps"
	"slices"
)

// Strict reports whether the registry's own strict mode is on: Options.Strict, or what SetStrict made of it.
func (r *Registry) Strict() bool {
	t, err := r.snapshot()
	return err == nil && t.opts.Strict
}

// SetStrict switches the registry's strict mode (see Options.Strict) while it runs. Scopes and flags of a call can still
// ask for more.
func (r *Registry) SetStrict(on bool) error {
	return r.mutate(func(s *state) error {
		s.seal() // so that the options read at the first compile do not undo it
		s.opts.Strict = on
		return nil
	})
}

// Disabled lists the entries that are disabled at present, sorted, as Disable, DisableOpProvider and the options gave them.
func (r *Registry) Disabled() []string {
	t, err := r.snapshot()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(t.disabled))
}
