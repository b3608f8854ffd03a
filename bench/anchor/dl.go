package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ebitengine/purego"
)

// errMissing marks a library that was not found. Its text lists the attempts.
var errMissing = errors.New("not found")

// library is an open shared library.
type library struct {
	name   string
	handle uintptr
}

// load opens the first of the candidates that the dynamic loader finds: an absolute path, or a name that it looks up
// where it always does (LD_LIBRARY_PATH, its cache, the system's folders). Nothing is searched beside that.
func load(candidates ...string) (library, error) {
	var attempts []string
	for _, name := range candidates {
		h, err := dlopen(name)
		if err == nil {
			return library{name, h}, nil
		}
		attempts = append(attempts, err.Error())
	}
	return library{}, fmt.Errorf("%w: %s", errMissing, strings.Join(attempts, "; "))
}

// bind sets the function pointers to the library's symbols. Missing symbols are an error: the library is of another kind
// or version than this program knows.
func (l library) bind(symbols map[string]any) error {
	var absent []string
	for name, fn := range symbols {
		if p, err := dlsym(l.handle, name); err != nil {
			absent = append(absent, name)
		} else {
			purego.RegisterFunc(fn, p)
		}
	}
	if absent != nil {
		slices.Sort(absent)
		return fmt.Errorf("%s has no %s", l.name, strings.Join(absent, ", "))
	}
	return nil
}
