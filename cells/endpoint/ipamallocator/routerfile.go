package ipamallocator

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/statefile"
)

// routers are the addresses of waggle_host that are stored across restarts.
type routers struct {
	IPv4       netip.Addr `json:"ipv4"`
	IPv6       netip.Addr `json:"ipv6"`
	HealthIPv4 netip.Addr `json:"healthIPv4"`
	HealthIPv6 netip.Addr `json:"healthIPv6"`
}

// addresses returns the router and health address of one family.
func (r routers) addresses(family string) (router, health netip.Addr) {
	if family == "ipv4" {
		return r.IPv4, r.HealthIPv4
	}
	return r.IPv6, r.HealthIPv6
}

// routerFile stores the addresses of waggle_host in the state directory.
type routerFile struct {
	store *statefile.Store
}

const routerDocument = "routers.json"

func newRouterFile(s agentconfig.Agent) *routerFile {
	return &routerFile{statefile.New(filepath.Join(s.StateDir, "ipam"), "ipam-routers")}
}

// read returns the addresses that the previous run wrote. A damaged file is moved to bad/ and reported; the addresses are then read from waggle_host or
// allocated again.
func (f *routerFile) read() (routers, error) {
	var r routers
	if err := f.store.Open(); err != nil {
		return r, err
	}
	files, err := f.store.ReadAll()
	if err != nil {
		return r, err
	}
	for _, file := range files {
		if file.Name != routerDocument {
			continue
		}
		err := file.Err
		if err == nil {
			err = json.Unmarshal(file.Document, &r)
		}
		if err != nil {
			movedTo, moveErr := f.store.Quarantine(file.Name)
			return routers{}, fmt.Errorf("read router addresses (moved to %s, %v): %w", movedTo, moveErr, err)
		}
	}
	return r, nil
}

func (f *routerFile) write(r routers) error {
	if err := f.store.Write(routerDocument, r); err != nil {
		return fmt.Errorf("keep router addresses for the next run: %w", err)
	}
	return nil
}
