package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tracer is a process of its own, because a tracer in the test process would take the exit statuses of its children from other waiters. It stops a process
// at each call that changes state outside the process, and at a chosen call kills the process or makes the call fail. So a test can cover all moments at which
// a process can die, one after the other.

// traceEnv is the environment variable that holds the rule as JSON. A test program with this variable is a tracer.
const traceEnv = "NODE_TEST_TRACE"

// reportFD is the file descriptor on which the tracer writes "ready" (when it follows a running process) and, at its end, its report as JSON.
const reportFD = 3

// traceRule says which process to trace and at which call to act.
type traceRule struct {
	Args  []string      `json:"args,omitempty"`  // program to start, or
	PID   int           `json:"pid,omitempty"`   // process to follow until stdin ends
	At    int           `json:"at,omitempty"`    // at which call to act, from 1 on; 0 only counts
	Errno syscall.Errno `json:"errno,omitempty"` // error that the call returns without any effect; 0 kills the process
}

// traceReport lists the observed calls.
type traceReport struct {
	Calls []string `json:"calls"` // calls that change state, in order
	Acted bool     `json:"acted"`
}

// Numbers of the kernel that package unix does not define.
const (
	ptraceSeize          = 0x4206
	ptraceInterrupt      = 0x4207
	ptraceGetSyscallInfo = 0x420e
	syscallEntry         = 1
)

// syscallInfo is struct ptrace_syscall_info at the entry of a call.
type syscallInfo struct {
	Op     uint8
	_      [3]byte
	_      uint32
	_, _   uint64
	Number uint64
	Args   [6]uint64
}

// tracer follows all threads of one process.
type tracer struct {
	rule    traceRule
	leader  int
	initial map[int]bool // threads that have not stopped for the first time yet
	known   map[int]bool
	failing map[int]bool // threads whose call is about to return rule.Errno

	mu     sync.Mutex // guards report
	report traceReport
}

// traceMain is the tracer's main function; it never returns.
func traceMain() {
	runtime.LockOSThread() // the kernel knows the tracer by its thread
	t := &tracer{initial: map[int]bool{}, known: map[int]bool{}, failing: map[int]bool{}}
	code, err := t.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tracer:", err)
		code = 99
	}
	t.finish(code)
}

func (t *tracer) finish(code int) {
	t.mu.Lock() // never unlocked: nothing may be added to the report
	text, _ := json.Marshal(t.report)
	_, _ = unix.Write(reportFD, append(text, '\n'))
	os.Exit(code)
}

func (t *tracer) run() (code int, err error) {
	if err := json.Unmarshal([]byte(os.Getenv(traceEnv)), &t.rule); err != nil {
		return 0, err
	}
	if t.rule.PID != 0 {
		err = t.follow()
	} else {
		err = t.start()
	}
	if err != nil {
		return 0, err
	}
	for {
		var status unix.WaitStatus
		tid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return code, nil
		case err != nil:
			return 0, err
		case status.Stopped():
			t.stopped(tid, status)
		case tid == t.leader && status.Exited():
			code = status.ExitStatus()
		case tid == t.leader:
			code = 128 + int(status.Signal())
		}
	}
}

const traceOptions = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK

// start runs a program from its first instruction on. The program dies with the tracer.
func (t *tracer) start() error {
	cmd := exec.Command(t.rule.Args[0], t.rule.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	t.leader = cmd.Process.Pid
	t.known[t.leader] = true
	var status unix.WaitStatus
	if _, err := unix.Wait4(t.leader, &status, unix.WALL, nil); err != nil {
		return err
	}
	if err := unix.PtraceSetOptions(t.leader, traceOptions|unix.PTRACE_O_EXITKILL); err != nil {
		return err
	}
	return unix.PtraceSyscall(t.leader, 0)
}

// follow attaches to a running process, and detaches when stdin ends.
func (t *tracer) follow() error {
	t.leader = t.rule.PID
	for again := true; again; { // threads may start during the scan
		again = false
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", t.leader))
		if err != nil {
			return err
		}
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			if t.known[tid] {
				continue
			}
			t.known[tid], again = true, true
			if err := ptrace(ptraceSeize, tid, 0, traceOptions); err != nil {
				continue // the thread has ended, or is traced since its creation
			}
			t.initial[tid] = true
			_ = ptrace(ptraceInterrupt, tid, 0, 0)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		t.finish(0)
	}()
	return nil
}

func (t *tracer) stopped(tid int, status unix.WaitStatus) {
	deliver := 0
	switch signal := status.StopSignal(); {
	case signal == unix.SIGTRAP|0x80:
		t.call(tid)
	case int(status)>>16 != 0: // an event
	case signal == unix.SIGSTOP && !t.known[tid]: // a new thread
	case signal == unix.SIGTRAP:
	default:
		deliver = int(signal)
	}
	t.known[tid] = true
	if t.initial[tid] {
		delete(t.initial, tid)
		if len(t.initial) == 0 {
			_, _ = unix.Write(reportFD, []byte("ready\n"))
		}
	}
	_ = unix.PtraceSyscall(tid, deliver) // fails when the thread is being killed
}

// call handles the entry and the exit of each call.
func (t *tracer) call(tid int) {
	var info syscallInfo
	if err := ptrace(ptraceGetSyscallInfo, tid, unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info))); err != nil {
		return
	}
	if info.Op != syscallEntry {
		if t.failing[tid] {
			delete(t.failing, tid)
			setRegisters(tid, func(r *unix.PtraceRegs) { r.Rax = uint64(-int64(t.rule.Errno)) })
		}
		return
	}
	name := t.describe(tid, info)
	if name == "" || len(t.initial) > 0 { // calls before all threads are traced are not counted
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Calls = append(t.report.Calls, name)
	if len(t.report.Calls) != t.rule.At {
		return
	}
	t.report.Acted = true
	if t.rule.Errno == 0 {
		_ = unix.Kill(t.leader, unix.SIGKILL) // before the call is made
		return
	}
	t.failing[tid] = true
	setRegisters(tid, func(r *unix.PtraceRegs) { r.Orig_rax = ^uint64(0) }) // no call has this number
}

func setRegisters(tid int, change func(*unix.PtraceRegs)) {
	var registers unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &registers) == nil {
		change(&registers)
		_ = unix.PtraceSetRegs(tid, &registers)
	}
}

func ptrace(request, tid int, addr, data uintptr) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), addr, data, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// changing lists the calls that always change state that outlives the process.
var changing = map[uint64]string{
	unix.SYS_SENDTO: "sendto", unix.SYS_SENDMSG: "sendmsg", unix.SYS_CONNECT: "connect",
	unix.SYS_RENAME: "rename", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
	unix.SYS_UNLINK: "unlink", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_LINK: "link", unix.SYS_LINKAT: "linkat",
	unix.SYS_MKDIR: "mkdir", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_SETNS: "setns", unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_MOUNT: "mount",
}

// changingBPF lists the commands of bpf(2) that change state that outlives the process.
var changingBPF = map[uint64]string{
	unix.BPF_MAP_CREATE: "map_create", unix.BPF_MAP_UPDATE_ELEM: "map_update", unix.BPF_MAP_DELETE_ELEM: "map_delete",
	unix.BPF_PROG_LOAD: "prog_load", unix.BPF_OBJ_PIN: "pin", unix.BPF_LINK_CREATE: "link_create",
	unix.BPF_LINK_UPDATE: "link_update", unix.BPF_MAP_UPDATE_BATCH: "map_update_batch", unix.BPF_MAP_DELETE_BATCH: "map_delete_batch",
}

// describe returns the name of a call that changes state, and "" for other calls.
func (t *tracer) describe(tid int, info syscallInfo) string {
	switch info.Number {
	case unix.SYS_BPF:
		if command, found := changingBPF[info.Args[0]]; found {
			return "bpf " + command
		}
		return ""
	case unix.SYS_OPENAT:
		if info.Args[2]&unix.O_CREAT != 0 {
			return "create"
		}
		return ""
	case unix.SYS_FCNTL:
		if info.Args[1] == unix.F_OFD_SETLK {
			return "lock"
		}
		return ""
	case unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITE64:
		return t.describeWrite(tid, int(info.Args[0]))
	}
	return changing[info.Number]
}

// describeWrite ignores logs and the writes with which the Go runtime wakes its own threads.
func (t *tracer) describeWrite(tid, fd int) string {
	if fd == 2 || fd == 1 && t.rule.PID != 0 {
		return ""
	}
	target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, fd))
	switch {
	case fd == 1:
		return "write result"
	case strings.HasPrefix(target, "socket:"):
		return "write socket"
	case strings.HasPrefix(target, "/"):
		return "write " + filepath.Base(target)
	}
	return ""
}
