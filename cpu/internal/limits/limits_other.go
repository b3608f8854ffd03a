//go:build !linux

package limits

import "io/fs"

// root is empty where the system has no /proc and no control groups.
func root() fs.FS { return nothing{} }

type nothing struct{}

func (nothing) Open(name string) (fs.File, error) { return nil, fs.ErrNotExist }
