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

const qemuProgram = "qemu-system-x86_64"

// A test machine has as many CPUs as the smallest machine that runs the tests, and memory for the file system.
const (
	machineCPUs   = 2
	machineMemory = "2G"
)

// kernelArgs makes a kernel that panics turn the machine off.
const kernelArgs = "console=ttyS0 loglevel=5 panic=-1 oops=panic"

// hardware returns the arguments for a computer without disk, network and screen.
func hardware(accel string, cpus int, more ...string) []string {
	return append([]string{"-accel", accel, "-cpu", "max", "-smp", strconv.Itoa(cpus), "-m", machineMemory,
		"-nodefaults", "-display", "none", "-no-reboot"}, more...)
}

// accelerator returns the accelerator for a kernel of a series. Both emulated CPUs of a machine with Linux 6.12 run in one thread of qemu: with a thread for each,
// a CPU can run the breakpoint by which the other one has just patched a static key (arch/x86/kernel/alternative.c, text_poke_bp_batch), and the kernel, which
// no longer expects it, panics ("int3").
func accelerator(accel, series string) string {
	if accel == "tcg" && series == newer {
		return "tcg,thread=single"
	}
	return accel
}

// machine is one emulated computer.
type machine struct {
	kernel, initramfs string   // paths
	console           string   // file for the kernel's messages
	hardware          []string // see [hardware]
	append            string   // arguments of the kernel
}

// run starts the machine and returns its CPU time in seconds after it is off. The function read gets the output of the second serial port, and may call cpu
// at any time for the CPU seconds so far.
func (m machine) run(ctx context.Context, read func(output io.Reader, cpu func() float64) error) (seconds float64, err error) {
	qemu, err := exec.LookPath(qemuProgram)
	if err != nil {
		return 0, fmt.Errorf("%w: run hack/packages as root", err)
	}
	cmd := exec.CommandContext(ctx, qemu, append(m.hardware, "-serial", "file:"+m.console, "-serial", "stdio",
		"-kernel", m.kernel, "-initrd", m.initramfs, "-append", m.append)...)
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	err = read(output, func() float64 { return cpuSeconds(cmd.Process.Pid) })
	if err != nil {
		_ = cmd.Cancel()
	}
	_, _ = io.Copy(io.Discard, output)
	err = errors.Join(err, cmd.Wait())
	seconds = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return seconds, errors.New("the machine was not off in time; -timeout gives it more")
	}
	if err != nil {
		return seconds, fmt.Errorf("run qemu: %w\n%s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return seconds, nil
}

// cpuSeconds returns the CPU time of a process of this machine, or 0 if the process does not exist.
func cpuSeconds(pid int) float64 {
	const ticks = 100 // per second, on every Linux architecture
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name, in parentheses, may contain spaces; user and system time are the 12th and 13th field after it.
	_, behind, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
	fields := strings.Fields(behind)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticks
}

// emulator returns qemu's version, which is an input of a suite.
func emulator(ctx context.Context) (string, error) {
	out, err := command(ctx, "", qemuProgram, "--version")
	first, _, _ := strings.Cut(out, "\n")
	return first, err
}

// lastLines returns the end of a file for an error message.
func lastLines(path string) string {
	const wanted = 30
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-wanted):], "\n")
}
