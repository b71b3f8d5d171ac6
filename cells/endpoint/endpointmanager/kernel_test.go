package endpointmanager

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestPrivilegedLinks_ListsVethsOfNamespace(t *testing.T) {
	var index int
	var found links
	testnet.New(t).Do(func() {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lxc0123456789ab"}, PeerName: "peer"}
		if err := netlink.LinkAdd(link); err != nil {
			t.Errorf("add a link: %v", err)
			return
		}
		made, err := netlink.LinkByName(link.Name)
		if err != nil {
			t.Error(err)
			return
		}
		index = made.Attrs().Index
		if found, err = (realKernel{}).links(); err != nil {
			t.Error(err)
		}
	})
	require.Equal(t, "lxc0123456789ab", found[index].name)
	require.False(t, found[index].mac.IsZero())
	require.NotContains(t, found, 1, "lo is no veth")
}

// The agent's view of a path: a namespace, no file, another file, or no directory.
func TestPrivilegedNamespace_ByPath(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	k, dir := realKernel{}, t.TempDir()
	own := k.namespace("/proc/self/ns/net")
	require.NotZero(t, own.inode)
	require.NotEmpty(t, own.dir)
	require.False(t, own.gone)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	file := k.namespace(filepath.Join(dir, "file"))
	require.Zero(t, file.inode, "a file is no namespace, as behind a mount that did not spread")
	require.False(t, file.gone)

	missing := k.namespace(filepath.Join(dir, "missing"))
	require.True(t, missing.gone)
	require.Equal(t, file.dir, missing.dir)

	require.Zero(t, k.namespace(filepath.Join(dir, "no-folder", "x")), "nothing is known")
	require.Zero(t, k.namespace("").inode)
	require.Len(t, k.boot(), 36)
}
