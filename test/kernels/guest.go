package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// programsEnv names the folder with the programs under test, for tests that would build them otherwise.
const programsEnv = "PROGRAMS_UNDER_TEST"

// moduleCompressed tells the kernel that a module's file is compressed, MODULE_INIT_COMPRESSED_FILE.
const moduleCompressed = 4

// guest is the first process of a machine. It turns the machine off when all suites have run.
func guest() {
	if err := runSuites(); err != nil {
		fmt.Println("kernels:", err) // on the console; outside, the suites are missed
	}
	unix.Sync()
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // qemu ends in place of a restart
	panic(err)                                        // and so it does here
}

func runSuites() error {
	if err := prepare(); err != nil {
		return err
	}
	output, err := openSerial("/dev/ttyS1")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(suitesFile)
	if err != nil {
		return err
	}
	var suites []suite
	if err := json.Unmarshal(text, &suites); err != nil {
		return err
	}
	for _, s := range suites {
		if err := s.run(output); err != nil {
			return err
		}
	}
	if err := unix.IoctlSetInt(int(output.Fd()), unix.TCSBRK, 1); err != nil { // waits until everything is out
		return fmt.Errorf("drain the serial port: %w", err)
	}
	return output.Close()
}

// run runs the tests of one package and writes what they say, and at last how they ended.
func (s suite) run(output *os.File) error {
	parallel := machineCPUs // not more, as some packages choose: emulated CPUs are slow
	if s.Package == agents {
		parallel = 1
	}
	cmd := exec.Command("/bin/test2json", "-t", "-p", s.Package, s.binary(), "-test.v=test2json", "-test.run="+s.Run, "-test.timeout=10m",
		"-test.parallel="+strconv.Itoa(parallel))
	cmd.Dir = "/tree/" + s.Package
	cmd.Env = []string{"PATH=/bin", "HOME=/", "TMPDIR=/tmp", programsEnv + "=" + programs, nodekit.Emulated + "=1"}
	cmd.Stdout, cmd.Stderr = output, os.Stderr
	begin := time.Now()
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return fmt.Errorf("start the tests of %s: %w", s.Package, err)
	}
	end := event{Action: passed, Package: s.Package, Elapsed: time.Since(begin).Seconds()}
	if err != nil {
		end.Action = failed
	}
	return json.NewEncoder(output).Encode(end)
}

// prepare makes of the bare kernel what tests expect of a machine.
func prepare() error {
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
	files, err := filepath.Glob(moduleDir + "/*")
	if err != nil {
		return err
	}
	for _, path := range files { // sorted
		if err := loadModule(path); err != nil {
			return err
		}
	}
	return nil
}

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
	if strings.Contains(path, "-dummy.ko") {
		parameters = "numdummies=0" // as Debian's modprobe says
	}
	if err := unix.FinitModule(int(file.Fd()), parameters, flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load module %s: %w", path, err)
	}
	return nil
}

// openSerial opens a serial port that changes nothing of what is written to it.
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
