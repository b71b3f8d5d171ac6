package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	answerWithin   = 20 * time.Second       // default timeout of a connection: on a busy machine a process can be without a CPU for more than 10 s
	datagramWithin = 500 * time.Millisecond // timeout after which a datagram of many counts as lost
	onlyDatagram   = 5 * time.Second        // timeout of a single datagram
)

var errNoAnswer = errors.New("no answer")

// client sends requests to one target.
type client struct {
	network  string // one of networks
	target   netip.AddrPort
	within   time.Duration // timeout of a request over a connection
	lost     time.Duration // timeout of a datagram
	kept     net.Conn      // of tcp-kept
	answers  *bufio.Reader // of kept
	socket   *net.UDPConn
	answered bool
	reopened int
}

var networks = []string{"tcp", "tcp-kept", "udp", "udp-connected"}

func newClient(target string, within time.Duration) (*client, error) {
	network, address, _ := strings.Cut(target, "://")
	if !slices.Contains(networks, network) {
		return nil, fmt.Errorf("no network %q: want one of %s", network, strings.Join(networks, ", "))
	}
	at, err := netip.ParseAddrPort(address)
	return &client{network: network, target: at, within: within, lost: datagramWithin}, err
}

// request sends one request and returns "SERVER PORT CLIENT".
func (c *client) request(number int) (answer string, err error) {
	question := fmt.Sprint(number)
	switch c.network {
	case "tcp":
		answer, err = c.connect(question)
	case "tcp-kept":
		answer, err = c.keep(question)
	default:
		answer, err = c.datagram(question)
	}
	if err != nil {
		return "", err
	}
	answer, echoed := cutLast(strings.TrimSpace(answer))
	if echoed != question {
		return "", fmt.Errorf("asked %q and got an answer to %q", question, echoed)
	}
	return answer, nil
}

func cutLast(text string) (before, last string) {
	i := strings.LastIndexByte(text, ' ')
	return text[:max(i, 0)], text[i+1:]
}

func (c *client) connect(question string) (string, error) {
	conn, err := net.DialTimeout("tcp", c.target.String(), c.within)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return c.over(conn, bufio.NewReader(conn), question)
}

// keep sends a request over the kept connection. After a failure it opens a new connection.
func (c *client) keep(question string) (answer string, err error) {
	if c.kept == nil {
		if c.kept, err = net.DialTimeout("tcp", c.target.String(), c.within); err != nil {
			c.kept = nil // must not hold a typed nil pointer: the interface would not be nil
			return "", err
		}
		c.answers = bufio.NewReader(c.kept)
	}
	if answer, err = c.over(c.kept, c.answers, question); err != nil {
		_ = c.kept.Close()
		c.kept = nil
		c.reopened++
	}
	return answer, err
}

func (c *client) over(conn net.Conn, answers *bufio.Reader, question string) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(c.within)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(question + "\n")); err != nil {
		return "", err
	}
	return answers.ReadString('\n')
}

// datagram sends one datagram and waits for its answer. It skips answers to earlier datagrams that have timed out.
func (c *client) datagram(question string) (string, error) {
	if err := c.open(); err != nil {
		return "", err
	}
	answer, err := c.exchange(question)
	c.answered = c.answered || err == nil
	// A socket that was connected before the Service existed does not belong to the Service.
	if c.network == "udp-connected" && err != nil && (!errors.Is(err, errNoAnswer) || !c.answered) {
		_ = c.socket.Close()
		c.socket = nil
		c.reopened++
	}
	return answer, err
}

// open opens the socket unless it is open.
func (c *client) open() (err error) {
	if c.socket != nil {
		return nil
	}
	family := "udp4"
	if c.target.Addr().Is6() {
		family = "udp6"
	}
	if c.network == "udp-connected" {
		c.socket, err = net.DialUDP(family, nil, net.UDPAddrFromAddrPort(c.target))
	} else {
		c.socket, err = net.ListenUDP(family, nil)
	}
	return err
}

func (c *client) exchange(question string) (string, error) {
	if err := c.socket.SetDeadline(time.Now().Add(c.lost)); err != nil {
		return "", err
	}
	if err := c.send(question); err != nil {
		return "", err
	}
	buffer := make([]byte, 2048)
	for {
		n, from, err := c.socket.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return "", errNoAnswer
		}
		if err != nil {
			return "", err
		}
		if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); from != c.target {
			return "", fmt.Errorf("an answer from %s", from)
		}
		if text := strings.TrimSpace(string(buffer[:n])); strings.HasSuffix(text, " "+question) {
			return text, nil
		}
	}
}

func (c *client) send(question string) (err error) {
	if c.network == "udp-connected" {
		_, err = c.socket.Write([]byte(question))
	} else {
		_, err = c.socket.WriteToUDPAddrPort([]byte(question), c.target)
	}
	return err
}
