package servicecontroller

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// again starts the next run, with the same files and the given objects.
func (b *bench) again(state sources.State, ids map[loadbalancer.Address]uint32, rows ...any) *bench {
	b.t.Helper()
	next := newBench(b.t, DefaultConfig, &fakeIDs{frontends: ids})
	next.c.Holders.files = b.c.Holders.files
	next.insert(rows...)
	next.state(state)
	next.step()
	return next
}

// TestHolders_SurviveARestart: the owner of an address that an older Service claims too keeps it over a restart, also when the inputs are a snapshot on disk at
// first.
func TestHolders_SurviveARestart(t *testing.T) {
	t.Parallel()
	const has, name = "192.0.2.1:80/TCP", "192.0.2.1:80-TCP"
	web, thief := outer("b", "web", "10.96.0.1", "192.0.2.1", 5), outer("a", "thief", "10.96.0.2", "192.0.2.1", 1)
	b := newBench(t, DefaultConfig, &fakeIDs{})
	file := filepath.Join(b.c.Holders.files.Dir(), name)
	there := func(what string, want bool) {
		t.Helper()
		if _, err := os.Stat(file); (err == nil) != want {
			t.Errorf("%s: the file: %v", what, err)
		}
	}
	owner := func(b *bench, what, want string) {
		t.Helper()
		got := ""
		if f := b.c.frontend(b.db.ReadTxn(), at(has)); f != nil {
			got = f.Service
		}
		b.expect(what, got, want)
	}
	b.state(sources.Synced)
	b.insert(web)
	b.step()
	there("no other service claims it", false)
	b.insert(thief)
	b.step()
	there("contested", true)
	owner(b, "contested", "b/web")

	b = b.again(sources.Synced, nil, web, thief)
	owner(b, "after a restart", "b/web")
	b = b.again(sources.Snapshot, map[loadbalancer.Address]uint32{at(has): 7}, thief)
	owner(b, "an older copy", "")
	there("an older copy", true)
	b.insert(web)
	b.state(sources.Synced)
	b.step()
	owner(b, "synced", "b/web")

	b.remove(thief)
	b.step()
	there("the other claims it no more", true)
	b = b.again(sources.Synced, nil, web, thief)
	owner(b, "it claimed it again meanwhile", "b/web")
	b.remove(web)
	b.step()
	owner(b, "the owner has gone", "a/thief")
	there("the owner has gone", false)
	b.insert(web)
	b.step()
	there("contested again", true)
	b.again(sources.Synced, nil, web)
	there("the owner went while no agent ran", false)
}

// TestHolders_Files: only addresses that two namespaces claim have files, at most maxHolders of them.
func TestHolders_Files(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.state(sources.Synced)
	b.insert(outer("a", "web", "10.96.0.1", "192.0.2.1", 1), outer("a", "second", "10.96.0.2", "192.0.2.1", 2))
	b.step()
	files := func(want int) {
		t.Helper()
		all, err := b.c.Holders.files.ReadAll()
		if err != nil && !errors.Is(err, fs.ErrNotExist) || len(all) != want {
			t.Errorf("%d files (%v), want %d", len(all), err, want)
		}
	}
	files(0)
	for i := range maxHolders - 1 {
		b.c.Holders.onFile[at(fmt.Sprintf("198.51.%d.%d:80/TCP", i/250, 1+i%250))] = "b/web"
	}
	b.insert(outer("b", "web", "10.96.0.3", "192.0.2.1", 3))
	b.step()
	files(1)
	b.insert(outer("a", "dns", "10.96.0.4", "192.0.2.2", 1), outer("b", "dns", "10.96.0.5", "192.0.2.2", 3))
	b.step()
	files(1)
}

// TestHolders_InvalidFile_IsQuarantined: an invalid file is quarantined and not used.
func TestHolders_InvalidFile_IsQuarantined(t *testing.T) {
	t.Parallel()
	h := newHolders(agentconfig.Agent{StateDir: t.TempDir()}, slog.New(slog.DiscardHandler))
	good, moved := holding{at("192.0.2.1:80/TCP"), "a/web"}, holding{at("[2001:db8::1]:80/UDP"), "a/dns"}
	for name, one := range map[string]holding{good.name(): good, moved.name(): moved, "192.0.2.9:80-TCP": good} {
		if err := h.files.Write(name, one); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(h.files.Dir(), "192.0.2.2:80-TCP"), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.load()
	if len(h.previous) != 2 || h.previous[good.Address] != good.Service || h.previous[moved.Address] != moved.Service {
		t.Errorf("read %v", h.previous)
	}
}
