package nodekit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const ethPAll = 0x0300 // ETH_P_ALL in network byte order

// packetSocket opens a raw socket on a device in the calling thread's namespace.
func packetSocket(device string) (int, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, ethPAll)
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ethPAll, Ifindex: link.Index}); err != nil {
		return -1, errors.Join(fmt.Errorf("bind a packet socket to %s: %w", device, err), unix.Close(fd))
	}
	return fd, nil
}

// SendFrame sends a frame on a device of a place without checks by the kernel.
func SendFrame(from NetNS, device string, frame []byte) error {
	return from.Do(func() error {
		fd, err := packetSocket(device)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if _, err := unix.Write(fd, frame); err != nil {
			return fmt.Errorf("send a frame of %d bytes from %s: %w", len(frame), device, err)
		}
		return nil
	})
}

const captureBuffer = 8 << 20 // bytes; holds all frames while the reader has no CPU

// Capture captures the frames that a device of a place receives and sends, during f and a short time afterwards.
func Capture(at NetNS, device string, f func() error) (frames [][]byte, err error) {
	return CaptureUntil(at, device, nil, f)
}

// CaptureUntil does the same, and waits for a required frame unless required is nil: a busy machine delays frames.
func CaptureUntil(at NetNS, device string, required func(frame []byte) bool, f func() error) (frames [][]byte, err error) {
	var fd int
	if err := at.Do(func() (err error) { fd, err = packetSocket(device); return err }); err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer); err != nil {
		return nil, fmt.Errorf("enlarge the buffer of a packet socket: %w", err)
	}
	if err := f(); err != nil {
		return nil, err
	}
	const settle = 100 * time.Millisecond // for frames in flight
	pause := unix.NsecToTimeval(int64(settle))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &pause); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(answerTimeout)
	for buffer := make([]byte, 1<<16); ; {
		n, err := unix.Read(fd, buffer)
		if errors.Is(err, unix.EAGAIN) {
			if required != nil && !slices.ContainsFunc(frames, required) && time.Now().Before(deadline) {
				continue
			}
			return frames, nil
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return frames, fmt.Errorf("read from %s: %w", device, err)
		}
		frames = append(frames, append([]byte(nil), buffer[:n]...))
	}
}

// StreamWaggle starts the program waggle with a command that does not end by itself. The output is written to output until the caller calls stop.
func (n *Node) StreamWaggle(output io.Writer, args ...string) (stop func(), err error) {
	args = append([]string{"--host", "unix://" + filepath.Join(n.StateDir(), "waggle.sock")}, args...)
	cmd := exec.Command(filepath.Join(n.options.BinDir, "waggle"), args...)
	cmd.Stdout, cmd.Stderr = output, output
	if err := n.Do(cmd.Start); err != nil {
		return nil, err
	}
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // the error is expected after the signal
	}, nil
}
