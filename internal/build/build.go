// Package build says what source the running program was built from.
package build

import "runtime/debug"

// Revision is the revision of the source, with "+" behind it if files had been changed; "" for builds without version
// control information, as tests are.
func Revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return revision(info.Settings)
}

func revision(settings []debug.BuildSetting) string {
	found := map[string]string{}
	for _, s := range settings {
		found[s.Key] = s.Value
	}
	r := found["vcs.revision"]
	if r != "" && found["vcs.modified"] == "true" {
		r += "+"
	}
	return r
}
