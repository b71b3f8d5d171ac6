package loader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/bpffs"
	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
)

// linkDir is the directory of pinned links, each named "<device>_<hook>".
func linkDir(agent agentconfig.Agent) string { return filepath.Join(agent.PinDir(), "links") }

// tcxLinks implements deviceLinks with tcx links that are pinned in dir, and with cls_bpf filters if the kernel has no tcx.
type tcxLinks struct {
	traffic *traffic
	dir     string
	pins    *bpffs.Watch
	copy    func(program string) (*ebpf.Program, error) // loads another copy of a program

	mu       sync.Mutex             // guards haveTCX, filters and restored
	haveTCX  *bool                  // whether the kernel has tcx; nil before the probe
	filters  map[string]attachPoint // by key, if cls_bpf replaces tcx
	restored bool                   // filters includes the filters of previous runs
}

func newTCXLinks(t *traffic, dir string, copy func(string) (*ebpf.Program, error)) *tcxLinks {
	return &tcxLinks{traffic: t, dir: dir, pins: bpffs.NewWatch(dir), copy: copy, filters: make(map[string]attachPoint)}
}

// PinsChanged implements deviceLinks.
func (t *tcxLinks) PinsChanged(ctx context.Context) error { return t.pins.Next(ctx) }

// Attach implements deviceLinks.
func (t *tcxLinks) Attach(key string, at attachPoint, p *program) error {
	supported, err := t.probe()
	switch {
	case err != nil:
		return err
	case supported:
		return t.attachTCX(key, at, p)
	}
	return t.attachFilter(key, at, p)
}

// probe reports whether the kernel has tcx (since Linux 6.6). It asks the kernel once.
func (t *tcxLinks) probe() (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.haveTCX != nil {
		return *t.haveTCX, nil
	}
	nothing, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return false, fmt.Errorf("probe the kernel for tcx: load a program: %w", err)
	}
	defer nothing.Close()
	_, err = link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: nothing, Attach: ebpf.AttachTCXEgress})
	found := errors.Is(err, unix.ENODEV) // a kernel with tcx looks up the device
	if !found && !errors.Is(err, link.ErrNotSupported) {
		return false, fmt.Errorf("probe the kernel for tcx: attach to no device: %w", err)
	}
	t.haveTCX = &found
	return found, nil
}

func (t *tcxLinks) attachTCX(key string, at attachPoint, p *program) error {
	pin := filepath.Join(t.dir, key)
	old, onDevice, err := openTCX(pin, at.IfIndex)
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
		return t.update(old, key, at, p)
	case p == nil:
		return fmt.Errorf("%s: %w", key, errNoFilter)
	}
	if err := t.Detach(key); err != nil { // the pin of a removed device
		return err
	}
	return t.create(key, pin, at, p)
}

// pinnedLink is a link that a previous run, or a previous attempt, has pinned.
type pinnedLink struct {
	link.Link
	info *link.Info
}

// openPinned opens a pinned link, or returns nil if there is none.
func openPinned(pin string) (*pinnedLink, error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open pinned link %s: %w", pin, err)
	}
	info, err := l.Info()
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("read pinned link %s: %w", pin, err)
	}
	return &pinnedLink{l, info}, nil
}

// exchange replaces the program of the link in one step, unless the link runs p already.
func (l *pinnedLink) exchange(key string, p *program) error {
	if uint32(l.info.Program) == p.ID {
		return nil
	}
	if err := l.Update(p.loaded); err != nil {
		return fmt.Errorf("update link %s to program %s: %w", key, p.Name, err)
	}
	return nil
}

// openTCX opens a pinned link and reports whether it is attached to the device with this ifindex.
func openTCX(pin string, ifindex int) (*pinnedLink, bool, error) {
	l, err := openPinned(pin)
	if l == nil {
		return nil, false, err
	}
	on := l.info.TCX()
	return l, on != nil && on.Ifindex == uint32(ifindex), nil
}

// update replaces the program of a link, and makes it the first on a hook that is not shared.
func (t *tcxLinks) update(l *pinnedLink, key string, at attachPoint, p *program) error {
	if err := l.exchange(key, p); err != nil {
		return err
	}
	if at.Shared {
		return nil
	}
	ahead, err := t.before(at.IfIndex, at.attachType(), l.info.ID)
	if err != nil || len(ahead) == 0 {
		return err
	}
	if err := t.moveFirst(l, key, at, p); err != nil {
		return fmt.Errorf("move %s ahead of %s on %s: %w", p.Name, strings.Join(ahead, ", "), key, err)
	}
	return nil
}

// moveFirst makes Waggle's link the first on its hook; foreign links stay unchanged. The kernel moves no link and takes no program twice for one hook, so the
// existing link runs a copy until the new link has replaced it.
func (t *tcxLinks) moveFirst(old link.Link, key string, at attachPoint, p *program) error {
	standIn, err := t.copy(p.Name)
	if err != nil {
		return err
	}
	defer standIn.Close()
	if err := old.Update(standIn); err != nil {
		return err
	}
	pin := filepath.Join(t.dir, key)
	err = t.create(key, pin+movingSuffix, at, p)
	if err == nil {
		err = os.Rename(pin+movingSuffix, pin) // removes the pin of the old link, and with it the link
	}
	if err != nil {
		return errors.Join(err, removeIfThere(pin+movingSuffix), old.Update(p.loaded))
	}
	return nil
}

// movingSuffix is the suffix of a pin that will replace another pin. The BPF file system allows no dots in names.
const movingSuffix = "_moving"

// create attaches a link ahead of all other programs on the hook, and pins it.
func (t *tcxLinks) create(key, pin string, at attachPoint, p *program) error {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return fmt.Errorf("create directory for pinned links: %w", err)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: at.IfIndex, Program: p.loaded, Attach: at.attachType(), Anchor: link.Head()})
	if err != nil {
		return fmt.Errorf("attach %s to %s (ifindex %d): %w", p.Name, key, at.IfIndex, err)
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin link %s: %w", pin, err) // closing the link detaches it again
	}
	return nil
}

// before lists the programs ahead of a link on a hook; all programs if the link is not on the hook.
func (t *tcxLinks) before(ifindex int, hook ebpf.AttachType, ours link.ID) (ahead []string, err error) {
	all, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: hook})
	if errors.Is(err, link.ErrNotSupported) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return nil, nil // a kernel before Linux 6.6, or a removed device
	}
	if err != nil {
		return nil, fmt.Errorf("list programs of ifindex %d: %w", ifindex, err)
	}
	for _, p := range all.Programs {
		if id, isLink := p.LinkID(); isLink && id == ours {
			return ahead, nil
		}
		ahead = append(ahead, fmt.Sprintf("program %d", p.ID))
	}
	return ahead, nil
}

// Ahead implements deviceLinks.
func (t *tcxLinks) Ahead(ifindex int) ([]string, error) {
	in, err1 := t.before(ifindex, ebpf.AttachTCXIngress, 0)
	out, err2 := t.before(ifindex, ebpf.AttachTCXEgress, 0)
	return append(in, out...), errors.Join(err1, err2)
}

// attachFilter is used if the kernel has no tcx: it adds a filter to the device itself, or replaces Waggle's filter in one step.
func (t *tcxLinks) attachFilter(key string, at attachPoint, p *program) error {
	if _, found, err := t.traffic.tc.Clsact(at.IfIndex); err != nil {
		return err
	} else if !found {
		if err := t.traffic.tc.EnsureClsact(at.IfIndex, tc.Blocks{}); err != nil {
			return err
		}
	}
	if err := t.checkForeignFilter(key, at); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.filters[key] = at
	return t.traffic.setFilter(at.filter(), p)
}

// checkForeignFilter returns an error if a filter of another program has the priority and handle of Waggle's filter.
func (t *tcxLinks) checkForeignFilter(key string, at attachPoint) error {
	if !at.Shared {
		return nil
	}
	filters, err := t.traffic.tc.Filters(at.filter())
	if err != nil {
		return err
	}
	for _, f := range filters {
		if f.Ours() && !slices.Contains(bpf.Programs(), f.Name) {
			return fmt.Errorf("attach to %s: its filter with priority %d and handle %#x is foreign, %q: remove it, or use Linux 6.6 or newer, where both can be attached",
				key, f.Priority, f.Handle, f.Name)
		}
	}
	return nil
}

// Detach implements deviceLinks. Removing the pin detaches the link, because the pin is its only reference.
func (t *tcxLinks) Detach(key string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, found := t.filters[key]; found {
		if err := t.traffic.tc.DeleteFilter(at.filter()); err != nil {
			return err
		}
		delete(t.filters, key)
	}
	return removeIfThere(filepath.Join(t.dir, key))
}

func removeIfThere(pin string) error {
	if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pinned link %s: %w", pin, err)
	}
	return nil
}

// Attached implements deviceLinks.
func (t *tcxLinks) Attached() (map[string]attached, error) {
	files, err := os.ReadDir(t.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	out := make(map[string]attached, len(files))
	for _, f := range files {
		if out[f.Name()], err = t.pinned(filepath.Join(t.dir, f.Name())); err != nil {
			return nil, err
		}
	}
	supported, err := t.probe()
	if err == nil && !supported {
		err = t.restore()
	}
	return out, errors.Join(err, t.addFilters(out))
}

// pinned reads the state of one pinned link.
func (t *tcxLinks) pinned(pin string) (a attached, err error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return attached{}, fmt.Errorf("open pinned link %s: %w", pin, err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return attached{}, fmt.Errorf("read pinned link %s: %w", pin, err)
	}
	a.Program = uint32(info.Program)
	if on := info.Cgroup(); on != nil {
		a.Group = on.CgroupId
	}
	on := info.TCX()
	if on == nil || on.Ifindex == 0 {
		return a, nil
	}
	a.IfIndex = int(on.Ifindex)
	a.Ahead, err = t.before(a.IfIndex, ebpf.AttachType(on.AttachType), info.ID)
	return a, err
}

// restore finds, once, the filters that previous runs have left on devices. Filters have no pins that would name their devices.
func (t *tcxLinks) restore() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.restored {
		return nil
	}
	devices, err := t.traffic.tc.Clsacts()
	if err != nil {
		return err
	}
	for ifindex, shared := range devices {
		if shared != (tc.Blocks{}) {
			continue // the link of a pod
		}
		for _, hook := range []string{ingress, egress} {
			if err := t.restoreHook(attachPoint{IfIndex: ifindex, Hook: hook, Shared: true}); err != nil {
				return err
			}
		}
	}
	t.restored = true
	return nil
}

func (t *tcxLinks) restoreHook(at attachPoint) error {
	filters, err := t.traffic.tc.Filters(at.filter())
	if err != nil {
		return err
	}
	for _, f := range filters {
		if !f.Ours() || !slices.Contains(bpf.Programs(), f.Name) {
			continue
		}
		l, err := t.traffic.links.LinkByIndex(at.IfIndex)
		if err != nil {
			if rtnl.IsGone(err) {
				continue
			}
			return fmt.Errorf("find the device of a filter of the agent: %w", err)
		}
		if key := pinOf(l.Attrs().Name, at.Hook); t.filters[key] == (attachPoint{}) {
			t.filters[key] = at
		}
	}
	return nil
}

// addFilters adds the filters that replace tcx links.
func (t *tcxLinks) addFilters(out map[string]attached) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, at := range t.filters {
		id, found, err := t.traffic.filter(at.filter())
		if err != nil {
			return err
		}
		if found {
			out[key] = attached{IfIndex: at.IfIndex, Program: id}
		}
	}
	return nil
}
