// Command guest is the first process of an emulated machine: it mounts file systems, loads modules, runs one suite after the other, writes events in the
// format of `go test -json` to the second serial port, and turns the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/kernels/plan"
)

// moduleCompressed is the flag of finit_module(2) for a compressed file, MODULE_INIT_COMPRESSED_FILE.
const moduleCompressed = 4

// descriptors is the maximum number of open files of a suite, as on a node.
const descriptors = 1 << 20

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: must be the first process of a machine")
		os.Exit(1)
	}
	if err := runSuites(); err != nil {
		fmt.Println("guest:", err) // to the console; the command outside reports the missing suites
	}
	unix.Sync()
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // qemu exits instead of restarting
	panic(err)                                        // ends the machine as well
}

func runSuites() error {
	if err := mountAll(); err != nil {
		return err
	}
	// The kernel's initial limit is 4,096. Tests that load all programs and maps several times concurrently exceed it.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: descriptors, Max: descriptors}); err != nil {
		return fmt.Errorf("allow %d open files: %w", descriptors, err)
	}
	output, err := openSerial("/dev/ttyS1")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(plan.Path)
	if err != nil {
		return err
	}
	var p plan.Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("read %s: %w", plan.Path, err)
	}
	if err := loadModules(p.Modules); err != nil {
		return err
	}
	for _, s := range p.Suites {
		if err := run(s, output); err != nil {
			return fmt.Errorf("suite %s: %w", s.Package, err)
		}
	}
	if err := unix.IoctlSetInt(int(output.Fd()), unix.TCSBRK, 1); err != nil { // waits until all output is sent
		return fmt.Errorf("drain the serial port: %w", err)
	}
	return output.Close()
}

// run runs one suite and writes its events, and finally an event with its result.
func run(s plan.Suite, output *os.File) error {
	if err := loadModules(s.Modules); err != nil {
		return err
	}
	programs, err := programsOf(s)
	if err != nil {
		return err
	}
	name := strings.ReplaceAll(s.Package, "/", "-")
	args := append([]string{"-t", "-p", s.Package, plan.TestDir + "/" + name + ".test", "-test.v=test2json"}, s.Args...)
	cmd := exec.Command("/bin/test2json", args...)
	cmd.Dir = plan.TreeDir + "/" + s.Package
	cmd.Env = append([]string{"PATH=/bin", "HOME=/", "TMPDIR=/tmp", plan.ProgramsEnv + "=" + programs}, s.Env...)
	cmd.Stdout, cmd.Stderr = output, os.Stderr
	begin := time.Now()
	err = cmd.Run()
	if cmd.ProcessState == nil {
		return fmt.Errorf("start the tests: %w", err)
	}
	end := plan.Event{Action: plan.Passed, Package: s.Package, Elapsed: time.Since(begin).Seconds()}
	if err != nil {
		end.Action = plan.Failed
	}
	return json.NewEncoder(output).Encode(end)
}

// programsOf creates a folder with only the programs that the suite lists: otherwise a suite could depend on a program whose changes do not invalidate its
// stamp.
func programsOf(s plan.Suite) (dir string, err error) {
	if len(s.Programs) == 0 {
		return "", nil
	}
	if dir, err = os.MkdirTemp("", "programs-"); err != nil {
		return "", err
	}
	for _, name := range s.Programs {
		if err := os.Symlink(plan.ProgramDir+"/"+name, filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// mountAll mounts the file systems that tests expect of a machine.
func mountAll() error {
	for _, m := range []struct{ kind, at string }{
		{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/run"}, {"tmpfs", "/tmp"},
		{"cgroup2", "/sys/fs/cgroup"}, {"bpf", "/sys/fs/bpf"}, {"debugfs", "/sys/kernel/debug"}, {"tracefs", "/sys/kernel/tracing"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.at, err)
		}
	}
	return nil
}

func loadModules(names []string) error {
	for _, name := range names {
		if err := loadModule(filepath.Join(plan.ModuleDir, name)); err != nil {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	return nil
}

// loadModule loads a module unless it is loaded already.
func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	flags, parameters := 0, ""
	if !strings.HasSuffix(path, ".ko") {
		flags = moduleCompressed
	}
	if strings.HasPrefix(filepath.Base(path), "dummy.ko") {
		parameters = "numdummies=0" // default of Debian's modprobe
	}
	if err := unix.FinitModule(int(file.Fd()), parameters, flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// openSerial opens a serial port in raw mode.
func openSerial(path string) (*os.File, error) {
	port, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(port.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read the settings of %s: %w", path, err)
	}
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	t.Cflag |= unix.CLOCAL
	if err := unix.IoctlSetTermios(int(port.Fd()), unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("change the settings of %s: %w", path, err)
	}
	return port, nil
}
