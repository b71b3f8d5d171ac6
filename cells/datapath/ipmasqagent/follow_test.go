package ipmasqagent

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/fsnotify/fsnotify"

	"github.com/waggle-net/waggle/pkg/tables/masquerade"
)

// TestFollower_WithoutInotify: without notifications the file is read nevertheless, and again at an interval.
func TestFollower_WithoutInotify(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ip-masq-agent")
	write := func(prefix string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("{nonMasqueradeCIDRs: ["+prefix+"], masqLinkLocal: true, masqLinkLocalIPv6: true}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		db := statedb.New()
		table, err := masquerade.NewIPMasqTable(db)
		if err != nil {
			t.Fatal(err)
		}
		f := &follower{
			params:     params{Config: Config{Enabled: true, Path: path}, DB: db, Table: table, Complete: newInitializer(db, table)},
			newWatcher: func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE },
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		health, _ := cell.NewSimpleHealth()
		go func() { ended <- f.run(ctx, health) }()
		for _, prefix := range []string{"10.0.0.0/8", "172.16.0.0/12"} {
			write(prefix)
			time.Sleep(2 * absent)
			synctest.Wait()
			txn := db.ReadTxn()
			found := false
			for row := range table.All(txn) {
				found = found || row.Prefix == netip.MustParsePrefix(prefix)
			}
			if done, _ := table.Initialized(txn); !done || !found || table.NumObjects(txn) != 1 {
				t.Errorf("the table is complete: %v, has %d rows, %s: %v", done, table.NumObjects(txn), prefix, found)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

// TestSettled_WaitsForTheLastChange also checks the limit of the wait.
func TestSettled_WaitsForTheLastChange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gaps []time.Duration
		want time.Duration
	}{
		"nothing":             {nil, reread},
		"one":                 {[]time.Duration{time.Second}, time.Second + settle},
		"a file in portions":  {[]time.Duration{time.Second, 90 * time.Millisecond, 90 * time.Millisecond}, time.Second + 180*time.Millisecond + settle},
		"just before the end": {[]time.Duration{reread - time.Millisecond}, reread - time.Millisecond + settle},
		"without an end":      {slices.Repeat([]time.Duration{60 * time.Millisecond}, 100), 60*time.Millisecond + unsettled},
	} {
		synctest.Test(t, func(t *testing.T) {
			events, lost := make(chan fsnotify.Event), make(chan error)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go func() {
				for i, gap := range c.gaps {
					in, failed := events, lost
					if i%2 == 0 {
						in = nil
					} else {
						failed = nil
					}
					time.Sleep(gap)
					select {
					case in <- fsnotify.Event{}:
					case failed <- errors.New("some were lost"):
					case <-ctx.Done():
						return
					}
				}
			}()
			began := time.Now()
			if !settled(ctx, events, lost, reread) {
				t.Errorf("%s: it says to stop", name)
			}
			if got := time.Since(began); got != c.want {
				t.Errorf("%s: settled after %s, want %s", name, got, c.want)
			}
			stop()
			time.Sleep(time.Minute) // the sender of events ends in this time
		})
	}
}
