package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tc"
)

// linkDir is where links are pinned, each under "<device>_<hook>".
func linkDir(agent settings.Agent) string { return filepath.Join(agent.PinDir(), "links") }

// tcxLinks implements deviceLinks with tcx links that are pinned in dir, and with cls_bpf filters where the kernel has
// no tcx. All hooks are egress hooks, the only ones in use.
type tcxLinks struct {
	traffic *traffic
	dir     string

	mu      sync.Mutex     // guards filters
	filters map[string]int // ifindex by key, where cls_bpf stands in for tcx
}

func newTCXLinks(t *traffic, dir string) *tcxLinks {
	return &tcxLinks{traffic: t, dir: dir, filters: make(map[string]int)}
}

// Attach implements deviceLinks.
func (t *tcxLinks) Attach(key string, ifindex int, p *program) error {
	err := t.attachTCX(key, ifindex, p)
	if !errors.Is(err, link.ErrNotSupported) {
		return err
	}
	return t.attachFilter(key, ifindex, p) // before Linux 6.6
}

func (t *tcxLinks) attachTCX(key string, ifindex int, p *program) error {
	pin := filepath.Join(t.dir, key)
	old, onDevice, err := t.open(pin, ifindex)
	if err != nil {
		return err
	}
	if old != nil {
		defer old.Close()
	}
	switch {
	case onDevice && p == nil:
		return nil
	case onDevice:
		return update(old, key, p)
	case p == nil:
		return t.missing(key, ifindex)
	}
	if err := t.Detach(key); err != nil { // a pin whose device is gone
		return err
	}
	return t.create(key, pin, ifindex, p)
}

// missing is the answer when this run has no program and there is no link of an earlier one.
func (t *tcxLinks) missing(key string, ifindex int) error {
	if _, found, err := t.traffic.filter(tc.Egress(ifindex)); found || err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", key, errNoFilter)
}

// open opens a pinned link and tells whether it is on this very device.
func (t *tcxLinks) open(pin string, ifindex int) (link.Link, bool, error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("open pinned link %s: %w", pin, err)
	}
	info, err := l.Info()
	if err != nil {
		_ = l.Close()
		return nil, false, fmt.Errorf("read pinned link %s: %w", pin, err)
	}
	on := info.TCX()
	return l, on != nil && on.Ifindex == uint32(ifindex), nil
}

// update exchanges the program of a link in one step, unless it runs already.
func update(l link.Link, key string, p *program) error {
	info, err := l.Info()
	if err != nil {
		return fmt.Errorf("read link %s: %w", key, err)
	}
	if uint32(info.Program) == p.ID {
		return nil
	}
	if err := l.Update(p.loaded); err != nil {
		return fmt.Errorf("update link %s to program %s: %w", key, p.Name, err)
	}
	return nil
}

// create attaches and pins. It runs behind programs that are there already: they came first.
func (t *tcxLinks) create(key, pin string, ifindex int, p *program) error {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return fmt.Errorf("make directory for pinned links: %w", err)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p.loaded, Attach: ebpf.AttachTCXEgress})
	if err != nil {
		return fmt.Errorf("attach %s to %s (ifindex %d): %w", p.Name, key, ifindex, err)
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin link %s: %w", pin, err) // closing it detaches it again
	}
	return nil
}

// attachFilter uses a filter on the device itself, where a filter of ours is replaced in one step.
func (t *tcxLinks) attachFilter(key string, ifindex int, p *program) error {
	if _, found, err := t.traffic.tc.Clsact(ifindex); err != nil {
		return err
	} else if !found {
		if err := t.traffic.tc.EnsureClsact(ifindex, tc.Blocks{}); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.filters[key] = ifindex
	return t.traffic.setFilter(tc.Egress(ifindex), p)
}

// Detach implements deviceLinks. Removing the pin is what detaches: nobody else has the link.
func (t *tcxLinks) Detach(key string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ifindex, found := t.filters[key]; found {
		if err := t.traffic.tc.DeleteFilter(tc.Egress(ifindex)); err != nil {
			return err
		}
		delete(t.filters, key)
	}
	if err := os.Remove(filepath.Join(t.dir, key)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pinned link %s: %w", key, err)
	}
	return nil
}

// Attached implements deviceLinks.
func (t *tcxLinks) Attached() (map[string]uint32, error) {
	files, err := os.ReadDir(t.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	out := make(map[string]uint32, len(files))
	for _, f := range files {
		l, err := link.LoadPinnedLink(filepath.Join(t.dir, f.Name()), nil)
		if err != nil {
			return nil, fmt.Errorf("open pinned link %s: %w", f.Name(), err)
		}
		info, err := l.Info()
		_ = l.Close()
		if err != nil {
			return nil, fmt.Errorf("read pinned link %s: %w", f.Name(), err)
		}
		out[f.Name()] = uint32(info.Program)
	}
	return out, t.addFilters(out)
}

// addFilters adds what stands in for tcx links.
func (t *tcxLinks) addFilters(out map[string]uint32) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, ifindex := range t.filters {
		id, found, err := t.traffic.filter(tc.Egress(ifindex))
		if err != nil {
			return err
		}
		if found {
			out[key] = id
		}
	}
	return nil
}
