package cgroups

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMounts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "mountinfo")
	require.NoError(t, os.WriteFile(file, []byte(
		"30 23 0:26 / /sys/fs/cgroup rw shared:9 - tmpfs tmpfs rw\n"+
			"31 30 0:27 / /sys/fs/cgroup/unified rw,relatime shared:10 master:1 - cgroup2 cgroup2 rw\n"+
			"32 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"+
			"33 30 0:27 /../.. /mnt/with\\040space rw - cgroup2 none rw\n"), 0o600))
	found, err := Mounts(file)
	require.NoError(t, err)
	require.Equal(t, []string{"/sys/fs/cgroup/unified", "/mnt/with space"}, found)
	_, err = Mounts(file + "-gone")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestRoot_NamesRemedy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(text string) string {
		file := filepath.Join(dir, "mountinfo")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	_, err := root(write("30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"))
	require.ErrorContains(t, err, "it is not mounted: mount cgroup2")
	_, err = root(write("30 23 0:26 / " + dir + " rw - cgroup2 none rw\n")) // no root group
	require.ErrorContains(t, err, "begins below it, as in a container: mount /sys/fs/cgroup of the machine")
}

func TestResolve_NamesRemedy(t *testing.T) {
	t.Parallel()
	_, err := Resolve(t.TempDir())
	require.ErrorContains(t, err, "it is not a directory of cgroup2: mount cgroup2")
	_, err = Resolve("/no-such-folder")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "--cgroup-root=/no-such-folder")
}
