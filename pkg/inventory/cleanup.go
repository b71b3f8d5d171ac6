package inventory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/agentlock"
)

// Errors of [Machine.Cleanup] before the first removal.
var (
	ErrRunning = errors.New("nothing was removed: stop it first")
	ErrPods    = errors.New("nothing was removed: delete or drain these pods first, or set --with-pods to disconnect them")
)

// errPodsRemain prevents the removal of filters, nftables rules and maps: without them the packets of the remaining pods would not be evaluated.
var errPodsRemain = errors.New("links of pods remain, and so do the programs and maps that filter their packets: run the command again")

var errInterrupted = errors.New("interrupted: run the command again, which removes the remaining objects")

// Cleanup removes the objects of [Machine.List] and returns the removed ones. It continues after errors and joins them; a further call retries the
// remaining objects, also after a call that was killed. It removes nothing while an agent or its setup runs, or while pods are attached unless withPods
// is true. The end of ctx stops it before the next object.
func (m *Machine) Cleanup(ctx context.Context, withPods bool) (removed []Object, err error) {
	unlock, err := m.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	before, err := m.List()
	errs := []error{err} // kinds that cannot be listed stay, the others are removed
	if err := m.inUse(withPods); err != nil {
		return nil, err
	}
removal:
	for _, k := range kinds() {
		found, err := m.find(k) // again, because earlier removals also removed objects of this kind
		errs = append(errs, err)
		for _, o := range found {
			if !slices.ContainsFunc(before, o.same) {
				before = append(before, o) // created since, by a running plugin
			}
			if o.remove == nil {
				continue
			}
			if ctx.Err() != nil {
				errs = append(errs, errInterrupted)
				break removal
			}
			if err := o.remove(); err != nil {
				errs = append(errs, fmt.Errorf("remove %s: %w", o, err))
			}
		}
		if k.name == podLinkKind {
			if left, err := m.podLinks(); err != nil || len(left) > 0 {
				errs = append(errs, errPodsRemain, err)
				break
			}
		}
	}
	after, err := m.List()
	for _, o := range before {
		if !slices.ContainsFunc(after, o.same) {
			removed = append(removed, o)
		}
	}
	errs = append(errs, err)
	errs = distinct(errs)
	if len(errs) == 0 && len(after) > 0 {
		errs = append(errs, fmt.Errorf("%d objects still exist or were recreated, first %s: find the program that creates them, then run the command again", len(after), after[0]))
	}
	return removed, errors.Join(errs...)
}

// distinct removes nil and repeated texts: a kind that cannot be listed fails with the same error each time.
func distinct(errs []error) (out []error) {
	seen := map[string]bool{}
	for _, err := range errs {
		if err != nil && !seen[err.Error()] {
			seen[err.Error()] = true
			out = append(out, err)
		}
	}
	return out
}

func (o Object) same(other Object) bool { return o.Kind == other.Kind && o.Name == other.Name }

func attached(links []Object) (names []string) {
	for _, o := range links {
		if o.pod {
			names = append(names, o.Name)
		}
	}
	return names
}

// Refusal returns the reason why [Machine.Cleanup] would remove nothing; nil without one. It changes nothing.
func (m *Machine) Refusal(withPods bool) error {
	unlock, err := m.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return m.inUse(withPods)
}

// inUse returns an error that names the attached pods, unless withPods is true.
func (m *Machine) inUse(withPods bool) error {
	links, err := m.podLinks()
	if err != nil {
		return fmt.Errorf("nothing was removed, because the attached pods are unknown: %w", err)
	}
	if pods := attached(links); len(pods) > 0 && !withPods {
		are := "pods are"
		if len(pods) == 1 {
			are = "pod is"
		}
		return fmt.Errorf("%d %s attached, by %s: %w", len(pods), are, strings.Join(pods[:min(len(pods), 5)], ", "), ErrPods)
	}
	return nil
}

// lock prevents the start of agent and setup. Without a state directory no process holds a lock in it.
func (m *Machine) lock() (unlock func(), err error) {
	if pid, running := agentlock.Announced(); running {
		return nil, fmt.Errorf("waggle-agent%s runs in this network namespace: %w", agentlock.Process(pid), ErrRunning)
	}
	var locks []*os.File
	unlock = func() {
		for _, l := range locks {
			l.Close()
		}
	}
	for file, program := range map[string]string{agentlock.AgentFile: "waggle-agent", agentlock.SetupFile: "waggle-agent setup"} {
		l, err := agentlock.TakeExisting(filepath.Join(m.paths.StateDir, file))
		var held *agentlock.HeldError
		switch {
		case err == nil:
			locks = append(locks, l)
		case errors.Is(err, fs.ErrNotExist):
		case errors.As(err, &held):
			unlock()
			return nil, fmt.Errorf("%s%s uses the state directory %s: %w", program, agentlock.Process(held.PID), m.paths.StateDir, ErrRunning)
		default:
			unlock()
			return nil, err
		}
	}
	return unlock, nil
}
