package inventory

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// TestPrivilegedCleanup_PodLinksRemain_KeepsGuards: while pod links remain, or cannot be listed, the objects that drop their packets stay.
func TestPrivilegedCleanup_PodLinksRemain_KeepsGuards(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testnet.New(t).Do(func() {
		m, err := Open(Paths{Agent: agentconfig.Agent{StateDir: filepath.Join(dir, "state"), BPFRoot: filepath.Join(dir, "bpf"), Procfs: "/proc"},
			LibDir: filepath.Join(dir, "lib"), CNIConf: filepath.Join(dir, "05-waggle.conflist")})
		if err == nil {
			defer m.Close()
			err = errors.Join(os.WriteFile(m.paths.CNIConf, []byte(`{"plugins":[{"type":"waggle-cni"},{"type":"istio-cni"}]}`), 0o600),
				nftguard.Install(nftguard.Rule{Groups: []uint32{podlink.Group}}))
		}
		if err != nil {
			t.Error(err)
			return
		}
		all, unknown := m.links, errors.New("no memory")
		for _, c := range []struct {
			links    []netlink.Link
			err      error
			withPods bool
			want     error
			conf     bool // the configuration exists afterwards
		}{
			{nil, unknown, false, unknown, true},
			{nil, unknown, true, unknown, true},
			{[]netlink.Link{stays()}, nil, false, ErrPods, true},
			{[]netlink.Link{stays()}, nil, true, errPodsRemain, false},
		} {
			m.links = func() ([]netlink.Link, error) { return c.links, c.err }
			if _, err := m.Cleanup(t.Context(), c.withPods); !errors.Is(err, c.want) {
				t.Errorf("with pods %t: %v, want %v", c.withPods, err, c.want)
			}
			there, err := nftguard.Exists()
			if _, noConf := os.Stat(m.paths.CNIConf); !there || err != nil || (noConf == nil) != c.conf {
				t.Errorf("with pods %t: the rule is there: %t, %v; the configuration: %v", c.withPods, there, err, noConf)
			}
		}
		m.links = all
		_, err = m.Cleanup(t.Context(), false)
		if there, err2 := nftguard.Exists(); there || errors.Join(err, err2) != nil {
			t.Errorf("in the end the rule is there: %t, %v, %v", there, err, err2)
		}
	})
}

// TestPrivilegedCleanup_Interrupted: a cleanup whose context ends removes no further object, and the next one removes the rest.
func TestPrivilegedCleanup_Interrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testnet.New(t).Do(func() {
		m, err := Open(Paths{Agent: agentconfig.Agent{StateDir: filepath.Join(dir, "state"), BPFRoot: filepath.Join(dir, "bpf"), Procfs: "/proc"},
			LibDir: filepath.Join(dir, "lib"), CNIConf: filepath.Join(dir, "05-waggle.conflist")})
		if err == nil {
			defer m.Close()
			err = errors.Join(os.WriteFile(m.paths.CNIConf, []byte(`{"plugins":[{"type":"waggle-cni"}]}`), 0o600),
				nftguard.Install(nftguard.Rule{Groups: []uint32{podlink.Group}}))
		}
		if err != nil {
			t.Error(err)
			return
		}
		ctx, cancel := context.WithCancel(t.Context())
		all := m.links
		m.links = func() ([]netlink.Link, error) {
			if _, err := os.Stat(m.paths.CNIConf); err != nil { // the first object is removed
				cancel()
			}
			return all()
		}
		removed, err := m.Cleanup(ctx, false)
		if there, err2 := nftguard.Exists(); !errors.Is(err, errInterrupted) || len(removed) != 1 || !there || err2 != nil {
			t.Errorf("removed %v, %v; the rule is there: %t, %v", removed, err, there, err2)
		}
		if removed, err = m.Cleanup(t.Context(), false); len(removed) != 1 || err != nil {
			t.Errorf("the next call removed %v, %v", removed, err)
		}
	})
}

// stays returns a pod link that is still listed after its deletion.
func stays() netlink.Link {
	attrs := netlink.LinkAttrs{Name: podlink.HostName("pod", "eth0", 0), Group: podlink.Group, RawFlags: 1}
	return &netlink.Veth{LinkAttrs: attrs}
}
