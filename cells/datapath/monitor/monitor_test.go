package monitor

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/monitorwire"
	"github.com/waggle-net/waggle/pkg/policyexplain"
	"github.com/waggle-net/waggle/pkg/tables/drops"
	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		fake := &fakeRing{records: make(chan []byte, 1024), closed: make(chan struct{})}
		dir := t.TempDir()
		return []cell.Cell{
			cell.Provide(func() agentconfig.Agent { return agentconfig.Agent{StateDir: dir} }),
			cell.Module("monitor", "Under test",
				cell.ProvidePrivate(func() source { return fake }, func() explainer { return fakeExplainer{} }),
				implementation,
				cell.Provide(func(h *hub) upstream.ScriptCmdsOut { return commands(fake, h, filepath.Join(dir, socketName)) }),
			),
		}
	})
}

// fakeRing is a ring buffer that scripts fill.
type fakeRing struct {
	records chan []byte
	mu      sync.Mutex
	lost    uint64
	openErr error
	closed  chan struct{}
	once    sync.Once
}

func (f *fakeRing) Open() (reader, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f, f.openErr
}

func (f *fakeRing) Read(deadline time.Time) ([]byte, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case r := <-f.records:
		return r, nil
	case <-timer.C:
		return nil, os.ErrDeadlineExceeded
	case <-f.closed:
		return nil, os.ErrClosed
	}
}

func (f *fakeRing) Lost() (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost, nil
}

func (f *fakeRing) Close() error { f.once.Do(func() { close(f.closed) }); return nil }

// dropRecord encodes a drop event by hand.
func dropRecord(reason uint8, endpoint uint16, packet []byte) []byte {
	r := make([]byte, 36, 36+len(packet))
	r[0], r[1] = 1, reason
	binary.NativeEndian.PutUint16(r[2:], endpoint)
	binary.NativeEndian.PutUint32(r[8:], uint32(len(packet)))
	binary.NativeEndian.PutUint16(r[12:], uint16(len(packet)))
	binary.NativeEndian.PutUint16(r[14:], 1)
	binary.NativeEndian.PutUint32(r[16:], 5)
	binary.NativeEndian.PutUint16(r[28:], 42)
	r[30] = 208
	binary.NativeEndian.PutUint32(r[32:], 17)
	return append(r, packet...)
}

// udp is a packet from 10.1.0.7:8080 to 10.1.0.8:80.
func udp() []byte {
	b, _ := hex.DecodeString("020000000001" + "020000000002" + "0800" + "45000028000040004011" + "0000" + "0a010007" + "0a010008" + "1f900050")
	return b
}

// fakeExplainer returns the packet as text.
type fakeExplainer struct{}

func (fakeExplainer) Why(p *policyexplain.Packet) string {
	return fmt.Sprintf("%s of %d, %s to %s, %d/%d", p.Direction, p.Endpoint, p.Own, p.Other, p.Port, p.Protocol)
}

// commands returns script commands that fill the ring and read from the socket.
func commands(f *fakeRing, h *hub, socket string) upstream.ScriptCmdsOut {
	simple := func(summary string, run func(args ...string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			out, err := run(args...)
			return func(*script.State) (string, string, error) { return out, "", err }, nil
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"ring/drop": simple("Put n drops: reason endpoint n", func(args ...string) (string, error) {
			reason, err1 := strconv.ParseUint(args[0], 10, 8)
			endpoint, err2 := strconv.ParseUint(args[1], 10, 16)
			n, err3 := strconv.Atoi(args[2])
			for range n {
				f.records <- dropRecord(uint8(reason), uint16(endpoint), udp())
			}
			return "", errors.Join(err1, err2, err3)
		}),
		"ring/garbage": simple("Put a record of an unknown type", func(...string) (string, error) {
			f.records <- []byte{99, 1, 2}
			return "", nil
		}),
		"ring/unopenable": simple("Let opening fail until ring/openable", func(...string) (string, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.openErr = errors.New("the map does not fit, says the test")
			return "", nil
		}),
		"ring/openable": simple("Let opening work", func(...string) (string, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.openErr = nil
			return "", nil
		}),
		"listen": simple("Connect, put a drop with a reason, and print what arrives", func(args ...string) (string, error) {
			reason, err := strconv.ParseUint(args[0], 10, 8)
			if err != nil {
				return "", err
			}
			conn, err := net.Dial("unix", socket)
			if err != nil {
				return "", err
			}
			defer conn.Close()
			for h.idle() { // the server has not taken the connection yet
				time.Sleep(time.Millisecond)
			}
			f.records <- dropRecord(uint8(reason), 7, udp())
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			p, err := monitorwire.NewDecoder(conn).Next()
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("type %d, event %d, reason %d, %d bytes\n", p.Type, p.Data[0], p.Data[1], len(p.Data)), nil
		}),
		"socket": simple("Show the socket", func(...string) (string, error) {
			info, err := os.Stat(socket)
			if errors.Is(err, os.ErrNotExist) {
				return "absent\n", nil
			}
			return info.Mode().String() + "\n", err
		}),
	})
}

func TestHub_SlowListener_GetsLostCount(t *testing.T) {
	t.Parallel()
	h := newHub()
	slow, quick := h.join(2), h.join(10)
	for range 5 {
		h.send(&monitorwire.Payload{Type: monitorwire.TypeSample})
	}
	if len(quick.queue) != 5 {
		t.Errorf("a slow listener held the quick one up: it has %d of 5", len(quick.queue))
	}
	<-slow.queue
	<-slow.queue
	h.send(&monitorwire.Payload{Type: monitorwire.TypeSample})
	if p := <-slow.queue; p.Type != monitorwire.TypeLost || p.Lost != 3 {
		t.Errorf("got %+v, want 3 lost", p)
	}
	if p := <-slow.queue; p.Type != monitorwire.TypeSample {
		t.Errorf("got %+v, want the sample", p)
	}
	h.leave(slow)
	h.leave(quick)
	if !h.idle() {
		t.Error("listeners that left are still there")
	}
}

func TestDerive(t *testing.T) {
	t.Parallel()
	agent := agentconfig.Agent{StateDir: "/run/w"}
	d, err := derive(Config{}, agent)
	if err != nil || d.path != "/run/w/monitor1_2.sock" || d.queue < queuePerCPU || d.queue > maxQueue {
		t.Errorf("defaults: %+v, error %v", d, err)
	}
	if d, err := derive(Config{MonitorSocketPath: "/x.sock", MonitorQueueSize: 3}, agent); err != nil || d != (derived{"/x.sock", 3}) {
		t.Errorf("given: %+v, error %v", d, err)
	}
	for _, n := range []int{-1, maxTypedQueue + 1} {
		if _, err := derive(Config{MonitorQueueSize: n}, agent); err == nil {
			t.Errorf("--monitor-queue-size=%d was accepted", n)
		}
	}
}

// FuzzStream feeds the decoder of the client with arbitrary input.
func FuzzStream(f *testing.F) {
	r, w := io.Pipe()
	go func() {
		_ = monitorwire.NewEncoder(w).Put(&monitorwire.Payload{Data: []byte{1}, Type: monitorwire.TypeSample})
		w.Close()
	}()
	seed, _ := io.ReadAll(r)
	f.Add(seed)
	f.Fuzz(func(t *testing.T, b []byte) {
		d := monitorwire.NewDecoder(newLimited(b))
		for range 10 {
			if _, err := d.Next(); err != nil {
				return
			}
		}
	})
}

func newLimited(b []byte) io.Reader { return &limited{b} }

// limited reads a slice once.
type limited struct{ b []byte }

func (l *limited) Read(p []byte) (int, error) {
	if len(l.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, l.b)
	l.b = l.b[n:]
	return n, nil
}

func TestPrivilegedRingBuffer_EventsAndLosses(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	all := celltest.Maps{}
	for _, name := range []string{bpf.MapEvents, bpf.MapEventsLost} {
		m, err := ebpf.NewMap(specs[name])
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		all[name] = m
	}
	r, err := newSource(all).Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(time.Now().Add(time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("an empty ring: %v", err)
	}
	emit(t, all[bpf.MapEvents])
	record, err := r.Read(time.Now().Add(time.Minute))
	if err != nil || len(record) != 8 || record[0] != 0x2a {
		t.Fatalf("record %x, error %v", record, err)
	}
	perCPU := make([]uint64, ebpf.MustPossibleCPU())
	perCPU[0] = 3
	if err := all[bpf.MapEventsLost].Put(uint32(0), perCPU); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Lost(); err != nil || n != 3 {
		t.Fatalf("lost %d, error %v; want 3", n, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(time.Time{}); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("a closed ring: %v", err)
	}
}

// emit runs a program that writes eight bytes to the ring; the first byte is 42.
func emit(t *testing.T, ring *ebpf.Map) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R1, 42),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, ring.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.Mov.Imm(asm.R3, 8),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}})
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	defer p.Close()
	if _, _, err := p.Test(make([]byte, 64)); err != nil {
		t.Fatalf("run: %v", err)
	}
}

func table(t testing.TB, db *statedb.DB) statedb.RWTable[*drops.Drop] {
	t.Helper()
	table, err := drops.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestPump_KeepsTheLatest(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	table := table(t, db)
	p := &pump{db: db, table: table, hub: newHub(), ledger: newTestLedger(t, db), reason: newThrifty(fakeExplainer{})}
	start := time.Now()
	for i := range 3 * keep {
		p.take(dropRecord(132, 7, udp()), start.Add(time.Duration(i)*time.Millisecond))
	}
	p.commit()
	next := uint64(2*keep + 1)
	for d := range table.All(db.ReadTxn()) {
		if d.Seq != next {
			t.Fatalf("row %d, want %d", d.Seq, next)
		}
		next++
	}
	if next != 3*keep+1 {
		t.Fatalf("the last row is %d, want %d", next-1, 3*keep)
	}
}
