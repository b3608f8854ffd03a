package build

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRevision(t *testing.T) {
	rev, clean, changed := debug.BuildSetting{Key: "vcs.revision", Value: "abc"}, debug.BuildSetting{Key: "vcs.modified", Value: "false"}, debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	require.Equal(t, "abc", revision([]debug.BuildSetting{rev, clean}))
	require.Equal(t, "abc+", revision([]debug.BuildSetting{changed, rev}), "in any order")
	require.Empty(t, revision([]debug.BuildSetting{changed}))
	require.Empty(t, revision(nil))
}
