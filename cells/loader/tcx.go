package loader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/bpffs"
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
	pins    *bpffs.Watch
	copy    func(program string) (*ebpf.Program, error) // loads a program once more

	mu      sync.Mutex     // guards what follows
	haveTCX *bool          // whether the kernel has it; nil until it has been asked
	filters map[string]int // ifindex by key, where cls_bpf stands in for tcx
}

func newTCXLinks(t *traffic, dir string, copy func(string) (*ebpf.Program, error)) *tcxLinks {
	return &tcxLinks{traffic: t, dir: dir, pins: bpffs.NewWatch(dir), copy: copy, filters: make(map[string]int)}
}

// PinsChanged implements deviceLinks.
func (t *tcxLinks) PinsChanged(ctx context.Context) error { return t.pins.Next(ctx) }

// Attach implements deviceLinks.
func (t *tcxLinks) Attach(key string, ifindex int, p *program) error {
	supported, err := t.probe()
	switch {
	case err != nil:
		return err
	case supported:
		return t.attachTCX(key, ifindex, p)
	}
	return t.attachFilter(key, ifindex, p)
}

// probe asks the kernel once whether it has tcx, which came with Linux 6.6.
func (t *tcxLinks) probe() (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.haveTCX != nil {
		return *t.haveTCX, nil
	}
	nothing, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return false, fmt.Errorf("ask the kernel for tcx: load a program: %w", err)
	}
	defer nothing.Close()
	_, err = link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: nothing, Attach: ebpf.AttachTCXEgress})
	found := errors.Is(err, unix.ENODEV) // a kernel that has it looks for the device
	if !found && !errors.Is(err, link.ErrNotSupported) {
		return false, fmt.Errorf("ask the kernel for tcx: attach to no device: %w", err)
	}
	t.haveTCX = &found
	return found, nil
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
		return t.update(old, key, ifindex, p)
	case p == nil:
		return fmt.Errorf("%s: %w", key, errNoFilter)
	}
	if err := t.Detach(key); err != nil { // a pin whose device is gone
		return err
	}
	return t.create(key, pin, ifindex, p)
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

// update exchanges the program of a link in one step, unless it runs already, and makes it the first of the hook.
func (t *tcxLinks) update(l link.Link, key string, ifindex int, p *program) error {
	info, err := l.Info()
	if err != nil {
		return fmt.Errorf("read link %s: %w", key, err)
	}
	if uint32(info.Program) != p.ID {
		if err := l.Update(p.loaded); err != nil {
			return fmt.Errorf("update link %s to program %s: %w", key, p.Name, err)
		}
	}
	ahead, err := t.before(ifindex, ebpf.AttachTCXEgress, info.ID)
	if err != nil || len(ahead) == 0 {
		return err
	}
	if err := t.moveFirst(l, key, ifindex, p); err != nil {
		return fmt.Errorf("move %s ahead of %s on %s: %w", p.Name, strings.Join(ahead, ", "), key, err)
	}
	return nil
}

// moveFirst puts a link of ours in front of the others on its hook; theirs stay as they are. The kernel moves no link and
// takes no program twice for one hook, so the link that is there runs a copy until the new one is in its place.
func (t *tcxLinks) moveFirst(old link.Link, key string, ifindex int, p *program) error {
	standIn, err := t.copy(p.Name)
	if err != nil {
		return err
	}
	defer standIn.Close()
	if err := old.Update(standIn); err != nil {
		return err
	}
	pin := filepath.Join(t.dir, key)
	err = t.create(key, pin+movingSuffix, ifindex, p)
	if err == nil {
		err = os.Rename(pin+movingSuffix, pin) // takes the pin of the old link away, and with it the link
	}
	if err != nil {
		return errors.Join(err, removeIfThere(pin+movingSuffix), old.Update(p.loaded))
	}
	return nil
}

// movingSuffix ends the name of a pin that is about to take the place of another. The BPF file system allows no dots.
const movingSuffix = "_moving"

// create attaches and pins, ahead of what is there.
func (t *tcxLinks) create(key, pin string, ifindex int, p *program) error {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return fmt.Errorf("make directory for pinned links: %w", err)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p.loaded, Attach: ebpf.AttachTCXEgress, Anchor: link.Head()})
	if err != nil {
		return fmt.Errorf("attach %s to %s (ifindex %d): %w", p.Name, key, ifindex, err)
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin link %s: %w", pin, err) // closing it detaches it again
	}
	return nil
}

// before lists the programs ahead of a link on a hook; with no link, all.
func (t *tcxLinks) before(ifindex int, hook ebpf.AttachType, ours link.ID) (ahead []string, err error) {
	all, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: hook})
	if errors.Is(err, link.ErrNotSupported) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return nil, nil // before Linux 6.6, or the device is gone
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

// attachFilter stands in for tcx: a filter on the device itself, where one of ours is replaced in one step.
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
	return out, t.addFilters(out)
}

// pinned reads one link back.
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
	if on := info.TCX(); on != nil {
		a.IfIndex = int(on.Ifindex)
	}
	if a.IfIndex != 0 {
		a.Ahead, err = t.before(a.IfIndex, ebpf.AttachTCXEgress, info.ID)
	}
	return a, err
}

// addFilters adds what stands in for tcx links.
func (t *tcxLinks) addFilters(out map[string]attached) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, ifindex := range t.filters {
		id, found, err := t.traffic.filter(tc.Egress(ifindex))
		if err != nil {
			return err
		}
		if found {
			out[key] = attached{IfIndex: ifindex, Program: id}
		}
	}
	return nil
}
