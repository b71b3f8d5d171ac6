package ipamallocator

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
)

func TestRouterFile_SurvivesARestart(t *testing.T) {
	t.Parallel()
	s := agentconfig.Agent{StateDir: t.TempDir()}
	f := newRouterFile(s)
	if got, err := f.read(); err != nil || got != (routers{}) {
		t.Errorf("before the first run: %v, %v", got, err)
	}
	want := routers{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.2"), netip.Addr{}}
	if err := f.write(want); err != nil {
		t.Fatal(err)
	}
	if got, err := newRouterFile(s).read(); err != nil || got != want {
		t.Errorf("after a restart: %v, %v", got, err)
	}
}

func TestRouterFile_DamagedIsQuarantined(t *testing.T) {
	t.Parallel()
	s := agentconfig.Agent{StateDir: t.TempDir()}
	f := newRouterFile(s)
	if _, err := f.read(); err != nil {
		t.Fatal(err)
	}
	if err := f.write(routers{IPv4: netip.MustParseAddr("10.0.0.1")}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.StateDir, "ipam", routerDocument)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := f.read(); err == nil || got != (routers{}) {
		t.Errorf("half a file: %v, %v", got, err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("half a file is still in place: %v", err)
	}
}
