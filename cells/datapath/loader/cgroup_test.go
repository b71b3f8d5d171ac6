package loader

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/capabilities"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// Every program of sockets has its hook.
func TestCgroupHooks_CoverAllPrograms(t *testing.T) {
	t.Parallel()
	spec, err := bpf.Load(bpf.Sock)
	require.NoError(t, err)
	rows := cgroupRows(socketlboptions.Options{Enabled: true})
	require.Len(t, rows, len(spec.Programs))
	for _, a := range rows {
		require.Equal(t, topmost, a.Device)
		require.Equal(t, spec.Programs[a.Program].AttachType, cgroupHooks[a.Hook], a.Program)
	}
	require.Empty(t, cgroupRows(socketlboptions.Options{Cgroup: "/group"}))
}

// Links outlive the agent, a new program replaces the old one in one step, and a detached link is noticed and repaired. The agent needs only the capabilities
// that it keeps.
func TestPrivilegedGroup_ReusedAndRepaired(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	group := testnet.NewCgroup(t)
	links := n.kernel.Devices.(*tcxLinks)
	const key, hook = "cgroup_connect4", "connect4"
	n.host.Do(func() {
		n.mountBPF()
		n.check(reduceThread())
		require.ErrorIs(t, links.AttachGroup(key, group.Path, hook, nil), errNoFilter)
		var first link.ID
		for range 2 { // attached, then reused by a later run
			programs, err := n.kernel.Programs.Load()
			n.check(err)
			p := programs[bpf.SockConnect4]
			n.check(links.AttachGroup(key, group.Path, hook, &p))
			n.check(links.AttachGroup(key, group.Path, hook, nil)) // any program of Waggle is accepted
			have := query(t, group.Path)
			require.Len(t, have, 1)
			require.Equal(t, ebpf.ProgramID(p.ID), have[0].ID)
			id := linkID(t, filepath.Join(links.dir, key))
			if first == 0 {
				first = id
			}
			require.Equal(t, first, id, "another link")
			all, err := links.Attached()
			n.check(err)
			require.Equal(t, attached{Program: p.ID, Group: links.Groups([]string{group.Path})[group.Path]}, all[key])

			// After a forced detach the pin has no group, and the program is attached again.
			if l, err := link.LoadPinnedLink(filepath.Join(links.dir, key), nil); err != nil {
				t.Error(err)
			} else {
				n.check(l.Detach())
				n.check(l.Close())
			}
			all, err = links.Attached()
			n.check(err)
			require.Zero(t, all[key].Group)
			require.Empty(t, query(t, group.Path))
			n.check(links.AttachGroup(key, group.Path, hook, &p))
			have = query(t, group.Path)
			require.Len(t, have, 1)
			first = linkID(t, filepath.Join(links.dir, key))
		}
		n.check(links.Detach(key))
		// The kernel frees a link without references asynchronously.
		require.Eventually(t, func() bool { return len(query(t, group.Path)) == 0 }, waitLimit, time.Millisecond)
		require.ErrorContains(t, links.AttachGroup(key, t.TempDir(), hook, nil), "it is not a directory of cgroup2: mount cgroup2")
		require.ErrorIs(t, links.AttachGroup(key, group.Path+"-gone", hook, nil), os.ErrNotExist)
	})
}

func query(t *testing.T, path string) []link.AttachedProgram {
	t.Helper()
	dir, err := os.Open(path)
	require.NoError(t, err)
	defer dir.Close()
	all, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupInet4Connect})
	require.NoError(t, err)
	return all.Programs
}

func linkID(t *testing.T, pin string) link.ID {
	t.Helper()
	l, err := link.LoadPinnedLink(pin, nil)
	require.NoError(t, err)
	defer l.Close()
	info, err := l.Info()
	require.NoError(t, err)
	return info.ID
}

// reduceThread drops from the calling thread the capabilities that the running agent has dropped.
func reduceThread() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	rights := uint64(capabilities.Agent)
	keep := [2]unix.CapUserData{
		{Effective: uint32(rights), Permitted: uint32(rights)},
		{Effective: uint32(rights >> 32), Permitted: uint32(rights >> 32)},
	}
	return unix.Capset(&header, &keep[0])
}
