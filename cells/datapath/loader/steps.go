package loader

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
)

// stepsDir is the directory of the pins of maps of steps, each named "<program>_<id of the program>".
func stepsDir(agent agentconfig.Agent) string { return filepath.Join(agent.PinDir(), "steps") }

// steps pins the maps through which programs on hooks make tail calls. The kernel empties such a map when no process has it open, unless it is pinned
// (prog_array_map_clear in kernel/bpf/arraymap.c): without a pin, attached programs would drop the packets of their steps after the agent has ended.
type steps struct{ dir string }

func (s steps) path(program string, id uint32) string {
	return filepath.Join(s.dir, program+"_"+strconv.FormatUint(uint64(id), 10))
}

// pin pins the steps of a program, unless they are pinned.
func (s steps) pin(p *program) error {
	if s.missing(p.Name, p.ID) == nil {
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("create the directory for steps of programs: %w", err)
	}
	same, err := p.steps.Clone() // the library pins no handle a second time
	if err == nil {
		defer same.Close()
		err = same.Pin(s.path(p.Name, p.ID))
	}
	if err != nil {
		return fmt.Errorf("pin the steps of program %s: %w", p.Name, err)
	}
	return nil
}

// missing returns why the steps of a program are not pinned, nil if they are. The error is EROFS if the file system is read-only.
func (s steps) missing(program string, id uint32) error {
	_, err := os.Stat(s.path(program, id))
	if err == nil {
		return nil
	}
	if readOnly := unix.Access(filepath.Dir(s.dir), unix.W_OK); readOnly != nil {
		err = fmt.Errorf("pin the steps of %s in %s: %w", program, s.dir, readOnly)
	}
	return err
}

// unpinUnused removes the pins of all other programs of the same name, which no longer run on a hook, after the last packet has left them.
func (s steps) unpinUnused(p *program) error {
	pins, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("list the pins of steps: %w", err)
	}
	var others []string
	for _, pin := range pins {
		if path := filepath.Join(s.dir, pin.Name()); strings.HasPrefix(pin.Name(), p.Name+"_") && path != s.path(p.Name, p.ID) {
			others = append(others, path)
		}
	}
	if len(others) == 0 {
		return nil
	}
	if err := pinnedmaps.AwaitPackets(); err != nil {
		return fmt.Errorf("remove the pins of steps of previous programs: %w", err)
	}
	var errs []error
	for _, path := range others {
		errs = append(errs, os.Remove(path))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the pins of steps of previous programs: %w", err)
	}
	return nil
}

// unpinned returns why the steps of the program on a block are not pinned. It returns nil if they are, or if the program is of a previous run, which may have
// none.
func unpinned(a *attachments.Attachment, seen observed) error {
	block := uint32(a.IfIndex)
	if a.Kind != attachments.Block || a.ProgramID == 0 || seen.Filters[block] != a.ProgramID {
		return nil
	}
	return seen.Unpinned[block]
}

// reportSteps reports steps that end with the agent. A missing pin that can be created again is a finding instead.
func reportSteps(health cell.Health, rows iter.Seq2[*attachments.Attachment, statedb.Revision], seen observed) {
	for a := range rows {
		if err := unpinned(a, seen); err != nil && !repairable(err) {
			health.Degraded("without an agent, programs of pods drop ARP, ICMP errors and new flows to services: mount the BPF file system read-write", err)
			return
		}
	}
	health.OK("the steps of programs are pinned")
}
