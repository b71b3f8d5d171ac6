package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// replyTo returns "SERVER PORT CLIENT QUESTION": the server's host name, the server's port and the client address that the server sees.
func replyTo(port string, client net.Addr, question string) string {
	name, err := os.Hostname()
	if err != nil {
		name = "unknown"
	}
	seen := netip.MustParseAddrPort(client.String()).Addr().Unmap().WithZone("")
	return fmt.Sprintf("%s %s %s %s\n", name, port, seen, question)
}

// served is the time of the last answer over a connection, in nanoseconds since [began].
var (
	served atomic.Int64
	began  = time.Now()
	// ending closes kept connections after their next answer.
	ending atomic.Bool
)

// idle returns the time since the last request over a connection.
func idle() time.Duration { return time.Since(began) - time.Duration(served.Load()) }

// serve answers until SIGTERM and then until no connection has sent a request for the duration drain, because clients may learn late that the server ends.
// serve does not break accepted connections.
func serve(zone string, drain time.Duration, ports []string) error {
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	var open sync.WaitGroup // open connections
	var listeners []net.Listener
	for i, port := range ports {
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		socket, err := net.ListenPacket("udp", ":"+port)
		if err != nil {
			return err
		}
		listeners = append(listeners, listener)
		open.Go(func() { serveTCP(listener, port, &open) })
		if zone != "" && i == 0 {
			go serveUDP(socket, func(_ net.Addr, question []byte) []byte { return resolve(zone, question) })
		} else {
			go serveUDP(socket, func(from net.Addr, question []byte) []byte { return []byte(replyTo(port, from, string(question))) })
		}
	}
	<-terminate
	for asked := time.Now(); time.Since(asked) < drain || idle() < drain; {
		time.Sleep(100 * time.Millisecond)
	}
	ending.Store(true)
	for _, l := range listeners {
		_ = l.Close()
	}
	open.Wait()
	return nil
}

func serveTCP(listener net.Listener, port string, open *sync.WaitGroup) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // for example, out of descriptors
			continue
		}
		open.Go(func() {
			defer conn.Close()
			for questions := bufio.NewReader(conn); ; {
				_ = conn.SetDeadline(time.Now().Add(answerWithin))
				question, err := questions.ReadString('\n')
				if err != nil {
					return // the client reports the failure
				}
				_, _ = conn.Write([]byte(replyTo(port, conn.RemoteAddr(), strings.TrimSpace(question))))
				served.Store(int64(time.Since(began)))
				if ending.Load() {
					return
				}
			}
		})
	}
}

func serveUDP(socket net.PacketConn, reply func(from net.Addr, question []byte) []byte) {
	buffer := make([]byte, 2048)
	for {
		n, from, err := socket.ReadFrom(buffer)
		if err != nil {
			continue
		}
		if text := reply(from, buffer[:n]); text != nil {
			_, _ = socket.WriteTo(text, from)
		}
	}
}

// resolve answers a query for the IPv4 address of the single name in the zone. Other queries get an answer without records.
func resolve(zone string, question []byte) []byte {
	name, address, _ := strings.Cut(zone, "=")
	var message dnsmessage.Message
	if message.Unpack(question) != nil || len(message.Questions) != 1 {
		return nil
	}
	q := message.Questions[0]
	message.Response, message.Additionals = true, nil
	if q.Name.String() == name+"." && q.Type == dnsmessage.TypeA {
		message.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
			Body: &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()}}}
	} else {
		message.RCode = dnsmessage.RCodeNameError
	}
	packed, err := message.Pack()
	if err != nil {
		return nil
	}
	return packed
}
