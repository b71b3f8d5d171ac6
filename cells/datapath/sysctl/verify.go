package sysctl

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// announcer receives the changes of settings that the kernel announces: forwarding and reverse path filters only.
type announcer interface {
	// Next waits for changes, including the changes of this cell. It returns [rtnl.ErrLost] when changes may have been lost.
	Next(ctx context.Context) ([]rtnl.Setting, error)
}

// netlinkAnnouncer is the real [announcer].
type netlinkAnnouncer struct{ *rtnl.Settings }

func newAnnouncer(lc cell.Lifecycle) announcer {
	a := &netlinkAnnouncer{}
	lc.Append(cell.Hook{
		OnStart: func(cell.HookContext) (err error) { a.Settings, err = rtnl.OpenSettings(); return err },
		OnStop:  func(cell.HookContext) error { a.Close(); return nil },
	})
	return a
}

// verifier compares settings with their rows and marks differing rows pending.
type verifier struct {
	cell.In

	Drift     drift.Watch
	Table     statedb.RWTable[*sysctls.Setting]
	Kernel    kernel
	Announcer announcer
}

func registerVerify(jobs job.Group, v verifier) {
	rounds := 0
	watchdog.AddTimer(jobs, "verify-sysctls", func(context.Context) error {
		rounds++
		_, err := v.verifySettings(func(name string) bool { return rounds%allRounds == 0 || !announcedName(name) })
		return err
	}, v.Drift.Interval)
	watchdog.Add(jobs, "follow-sysctls", func(ctx context.Context, health cell.Health) error {
		return drift.Follow(ctx, health, v.next, v.look)
	})
}

// next waits until an announced setting differs from its row, or until announcements may have been lost.
func (v verifier) next(ctx context.Context) error {
	for {
		changed, err := v.Announcer.Next(ctx)
		if errors.Is(err, rtnl.ErrLost) {
			return nil
		}
		if err != nil {
			return err
		}
		txn := v.Drift.DB.ReadTxn()
		for _, s := range changed {
			if v.concerns(txn, s) {
				return nil
			}
		}
	}
}

// concerns reports whether an announced setting differs from its row. For a new link it reads the settings of the rows for this link, because a recreated link
// has default settings. It reads only these, because each new pod has a new link and a scan reads the settings of all links.
func (v verifier) concerns(txn statedb.ReadTxn, s rtnl.Setting) bool {
	if s.All {
		for row := range v.Table.Prefix(txn, sysctls.ByName(s.Name+"/")) {
			if found, err := v.findings(row); len(found) > 0 || err != nil {
				return true
			}
		}
		return false
	}
	row, _, found := v.Table.Get(txn, sysctls.ByName(s.Name))
	return found && !same(row.Value, s.String())
}

// allRounds is the number of rounds of the timer after which announced settings are read as well. Each pod has such a setting, and reading them is most of the
// cost.
const allRounds = 10

// announcedName reports whether the kernel announces changes of a setting.
func announcedName(name string) bool {
	leaf := path.Base(name)
	return leaf == "rp_filter" || leaf == "forwarding" || leaf == "ip_forward"
}

// look verifies all settings.
func (v verifier) look() (again bool, err error) {
	return v.verifySettings(func(string) bool { return true })
}

// verifySettings verifies the settings for whose names the function returns true. A setting that cannot be read is an error and not a drift.
func (v verifier) verifySettings(names func(string) bool) (again bool, err error) {
	again = drift.Mark(v.Drift, v.Table, v.Drift.DB.ReadTxn(), func(s *sysctls.Setting) []driftrepairs.Finding {
		if !names(s.Name) {
			return nil
		}
		found, failed := v.findings(s)
		if failed != nil {
			err = failed // one is enough: usually all reads fail for the same reason
		}
		return found
	})
	return again, err
}

// findings compares a setting with its row. A missing setting is a finding unless it is optional; the reconciler then handles the row.
func (v verifier) findings(s *sysctls.Setting) ([]driftrepairs.Finding, error) {
	have, err := v.Kernel.Read(s.Name)
	switch {
	case missing(err):
		return drift.If(!s.Optional, driftrepairs.Sysctl, s.Name, err.Error()), nil
	case err != nil:
		return nil, fmt.Errorf("read settings back: %w", err)
	}
	return drift.If(!same(have, s.Value), driftrepairs.Sysctl, s.Name, "is "+have), nil
}
