package registry

import "github.com/opmux/opmux/device"

type Oracle struct{ Name string }

func (t *table) oracle(g *Registration, p *device.Platform, v TraitView) (int, string) { return 10, "" }
func (r *Registry) digest(t *table) string                                             { return "" }
