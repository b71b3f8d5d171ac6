package cgroups

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPods finds groups with the names of the kubelet's cgroup drivers, and no other groups.
func TestPods(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const uid = "0123abcd-0123-4567-89ab-0123456789ab"
	id := func(path string) uint64 {
		require.NoError(t, os.MkdirAll(filepath.Join(root, path), 0o755))
		info, err := os.Stat(filepath.Join(root, path))
		require.NoError(t, err)
		return info.Sys().(*syscall.Stat_t).Ino
	}
	underscores := strings.ReplaceAll(uid, "-", "_")
	var want []Pod
	for _, pod := range []struct{ group, uid string }{ // sorted by path
		{"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + underscores + ".slice", uid},
		{"kubepods/besteffort/pod" + uid, uid},
		{"kubepods/burstable/podabcdef0123456789abcdef0123456789", "abcdef0123456789abcdef0123456789"}, // of a static pod
		{"kubepods/pod" + uid, uid},
		{"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscores + ".slice", uid},
		{"kubepods.slice/kubepods-pod" + underscores + ".slice", uid},
	} {
		one, two := pod.group+"/cri-containerd-1.scope", pod.group+"/cri-containerd-2.scope"
		want = append(want, Pod{pod.uid, []Container{{id(one), one}, {id(two), two}}})
		require.NoError(t, os.WriteFile(filepath.Join(root, pod.group, "cgroup.procs"), nil, 0o600))
	}
	id("system.slice/pod" + uid + "/of-nobody")
	id("kubepods/poddle/of-nobody")
	id("kubepods/a/b/pod" + uid)
	got, err := Pods(root)
	require.NoError(t, err)
	require.Equal(t, want, got)

	_, err = Pods(root + "-gone")
	require.ErrorIs(t, err, os.ErrNotExist)
}
