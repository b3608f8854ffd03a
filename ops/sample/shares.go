package sample

import (
	"maps"

	"github.com/opmux/opmux/registry"
)

// Shares lists the outputs of an op that may have the memory of an input, by name, and which.
func Shares(d registry.Descriptor) map[string]string { return maps.Clone(recipeOf(d.Name).alias) }
