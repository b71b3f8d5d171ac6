package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// A machine has as many CPUs as the smallest that run the tests, and room for the file system in memory.
const (
	machineCPUs   = 2
	machineMemory = "2G"
)

// machine is a computer without disk, network and screen.
type machine struct {
	kernel, initramfs string // paths
	console           string // file for what the kernel says
	accel             string
}

// run starts the machine, hands what comes out of its second serial port to read, and returns when it is off. A kernel
// that panics turns the machine off.
func (m machine) run(ctx context.Context, read func(io.Reader) error) error {
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return fmt.Errorf("%w: run hack/packages as root", err)
	}
	cmd := exec.CommandContext(ctx, qemu, "-accel", m.accel, "-cpu", "max", "-smp", strconv.Itoa(machineCPUs), "-m", machineMemory,
		"-nodefaults", "-display", "none", "-no-reboot", "-serial", "file:"+m.console, "-serial", "stdio",
		"-kernel", m.kernel, "-initrd", m.initramfs, "-append", "console=ttyS0 loglevel=5 panic=-1 oops=panic")
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = read(output)
	if err != nil {
		_ = cmd.Cancel()
	}
	_, _ = io.Copy(io.Discard, output)
	err = errors.Join(err, cmd.Wait())
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errors.New("time is over; -timeout gives it more")
	}
	if err != nil {
		return fmt.Errorf("run qemu: %w\n%s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// lastLines is the end of a file, for an error.
func lastLines(path string) string {
	const wanted = 30
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-wanted):], "\n")
}
