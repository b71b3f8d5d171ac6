package sysctl

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/tables/sysctls"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

func registerReconciler(params reconciler.Params, table statedb.RWTable[*sysctls.Setting], o *ops) error {
	_, err := watchdog.Register(params, table,
		(*sysctls.Setting).Clone, (*sysctls.Setting).WithStatus, (*sysctls.Setting).GetStatus, o, nil,
		reconciler.WithName("sysctls"),
		reconciler.WithRefreshing(0, nil), // the verify job marks rows whose setting differs
		reconciler.WithoutPruning(),       // settings are not reset
		// A setting of a device fails until the device exists, usually for a short time.
		reconciler.WithRetry(100*time.Millisecond, time.Minute),
		reconciler.WithRoundLimits(1000, rate.NewLimiter(1000, 1)),
	)
	return err
}

// ops writes settings.
type ops struct{ kernel kernel }

func newOps(k kernel) *ops { return &ops{kernel: k} }

// Update implements reconciler.Operations. It writes a setting whose value differs and verifies the write.
func (o *ops) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, s *sysctls.Setting) error {
	if err := validName(s.Name); err != nil {
		return err
	}
	have, err := o.kernel.Read(s.Name)
	if err != nil {
		if s.Optional && missing(err) {
			return nil
		}
		return fmt.Errorf("read sysctl %s: %w", s.Name, err)
	}
	if same(have, s.Value) {
		return nil
	}
	if err := o.kernel.Write(s.Name, s.Value); err != nil {
		if s.Optional && missing(err) {
			return nil
		}
		return fmt.Errorf("set sysctl %s = %s: %w", s.Name, s.Value, err)
	}
	have, err = o.kernel.Read(s.Name)
	switch {
	case err != nil:
		return fmt.Errorf("read sysctl %s back: %w", s.Name, err)
	case !same(have, s.Value):
		return fmt.Errorf("set sysctl %s = %s: the kernel keeps %s", s.Name, s.Value, have)
	}
	return nil
}

// same compares values as the kernel prints them: settings of several numbers have tabs between them.
func same(a, b string) bool {
	return strings.Join(strings.Fields(a), " ") == strings.Join(strings.Fields(b), " ")
}

// Delete implements reconciler.Operations. The setting keeps its value, because other programs may depend on it.
func (o *ops) Delete(context.Context, statedb.ReadTxn, statedb.Revision, *sysctls.Setting) error {
	return nil
}

// Prune implements reconciler.Operations and is never called.
func (o *ops) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*sysctls.Setting, statedb.Revision]) error {
	return nil
}
