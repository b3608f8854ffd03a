//go:build !unix

package main

import (
	"fmt"
	"runtime"
)

func dlopen(name string) (uintptr, error) {
	return 0, fmt.Errorf("%s: libraries are not loaded on %s", name, runtime.GOOS)
}

func dlsym(uintptr, string) (uintptr, error) { return 0, errMissing }

func dlclose(uintptr) {}
