package rtnl

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// scripted is a socket whose calls of Receive have the given errors, the last one again and again. Without a timeout, EAGAIN is an error of the test: the socket
// is quiet, so the call would block.
type scripted struct {
	t       *testing.T
	results []error
	timeout bool
}

func (s *scripted) Receive() ([]syscall.NetlinkMessage, *unix.SockaddrNetlink, error) {
	err := s.results[0]
	if len(s.results) > 1 {
		s.results = s.results[1:]
	}
	if errors.Is(err, unix.EAGAIN) && !s.timeout {
		s.t.Error("a call without a timeout on a quiet socket")
	}
	if err != nil {
		return nil, nil, err
	}
	return []syscall.NetlinkMessage{{}}, nil, nil
}

func (s *scripted) SetReceiveTimeout(timeout *unix.Timeval) error {
	s.timeout = timeout.Nano() > 0
	return nil
}

func (s *scripted) Close() {}

// TestListener_AfterError_ReportsLossOnce: a notification may be lost with the error, and the next one may be sent hours later. The loss is reported when the
// socket works, and only then: a broken socket must not appear to work now and then.
func TestListener_AfterError_ReportsLossOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ results, want []error }{
		"the socket is quiet after the error":  {[]error{unix.ENOMEM, unix.EAGAIN, nil, nil}, []error{unix.ENOMEM, ErrLost, nil, nil}},
		"there are notifications":              {[]error{unix.ENOMEM, nil, nil}, []error{unix.ENOMEM, ErrLost, nil}},
		"there were too many":                  {[]error{unix.ENOMEM, unix.ENOBUFS, nil}, []error{unix.ENOMEM, ErrLost, nil}},
		"several errors":                       {[]error{unix.ENOMEM, unix.ENOMEM, unix.EAGAIN, nil}, []error{unix.ENOMEM, unix.ENOMEM, ErrLost, nil}},
		"a second error":                       {[]error{unix.ENOMEM, nil, unix.ENOMEM, nil, nil}, []error{unix.ENOMEM, ErrLost, unix.ENOMEM, ErrLost, nil}},
		"broken for ever":                      {[]error{os.ErrClosed}, []error{os.ErrClosed, os.ErrClosed, os.ErrClosed, os.ErrClosed}},
		"too many notifications, but no error": {[]error{unix.ENOBUFS, nil}, []error{ErrLost, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &scripted{t: t, results: c.results}
			l := &Listener{socket: s, what: "things"}
			for i, want := range c.want {
				msgs, err := l.Next(t.Context())
				if !errors.Is(err, want) || (len(msgs) > 0) != (err == nil) {
					t.Fatalf("call %d: %d messages, %v; want %v", i, len(msgs), err, want)
				}
			}
			if s.timeout != l.lost {
				t.Errorf("the last call had a timeout: %v", s.timeout)
			}
		})
	}
}

// TestSocket_Timeout_IsEAGAIN checks what [Listener.Next] expects of the library.
func TestSocket_Timeout_IsEAGAIN(t *testing.T) {
	t.Parallel()
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.SetReceiveTimeout(&unix.Timeval{Usec: 1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Receive(); !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("a quiet socket: %v", err)
	}
}
