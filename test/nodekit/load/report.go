package load

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Report holds the results of the traffic.
type Report struct {
	Rates    Rates // requested rates
	Duration time.Duration
	TCP      TCP
	UDP      UDP
	Connects Connects
	Denied   Denied
	Backlog  uint64   // packets that this machine dropped before processing, of any sender (softnet_stat)
	Faults   []string // the first ones, with their times
}

// TCP holds the results of the long connections. The kernel retransmits lost segments, so the counters of both ends are compared. A retransmission is no
// proof of a loss: on a busy machine acknowledgements are late.
type TCP struct {
	Messages         int // sent; each is answered
	Overslept        int // not sent because the generator had no CPU
	Lost             int // without an answer, which ends the connection
	Corrupted        int // answered with wrong content
	Reset            int // connections that ended early
	LostSegments     int // sent by either end and never received by the other
	Retransmitted    int // segments of both ends, without the duplicates that the receiver reported (DSACK)
	LongestRoundTrip time.Duration
}

// UDP holds the results of the numbered datagrams.
type UDP struct {
	Sent       int
	Overslept  int // not sent because the generator had no CPU
	Lost       int
	Refused    int // rejected by the sending system call; they count as lost, too
	Overflowed int // exceeded a full receive buffer; not lost
	Reordered  int
	Duplicated int
	LongestGap time.Duration // between two arrivals of one stream, minus the time between their sendings
	Losses     []Loss        // missing datagrams, including the ones that exceeded a full receive buffer
}

// Loss is a sequence of consecutive missing datagrams.
type Loss struct {
	Path        string
	Count       int
	First, Last time.Duration // sending times since the start
}

// Connects holds the results of the short connections.
type Connects struct {
	Done          int
	Overslept     int // not started because the generator had no CPU
	Failed        int // includes resets
	Reset         int
	Retransmitted int // segments of the connecting end
	Longest       time.Duration
}

// Denied holds the results of the frames that must not arrive.
type Denied struct {
	Sent, Arrived int
	Overslept     int // not sent because the generator had no CPU
}

// Err returns nil if no traffic was disturbed, no forbidden frame arrived, and the amount of traffic was sufficient as a proof.
func (r Report) Err() error {
	errs := r.inconclusive()
	for _, c := range []struct {
		what  string
		count int
	}{
		{"TCP messages lost", r.TCP.Lost}, {"TCP messages corrupted", r.TCP.Corrupted}, {"TCP connections reset", r.TCP.Reset},
		{"TCP segments lost", r.TCP.LostSegments}, {"datagrams lost", r.UDP.Lost},
		{"datagrams reordered", r.UDP.Reordered}, {"datagrams duplicated", r.UDP.Duplicated},
		{"short connections failed", r.Connects.Failed}, {"forbidden frames arrived", r.Denied.Arrived},
	} {
		if c.count > 0 {
			errs = append(errs, fmt.Errorf("%d %s", c.count, c.what))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w\n%s\n%s", errors.Join(errs...), r, strings.Join(r.Faults, "\n"))
}

// inconclusive returns an error for each kind of traffic of which less than half was sent. Such a run proves nothing: the machine was too busy, or answers
// were slow. The missed slots distinguish the two causes.
func (r Report) inconclusive() (errs []error) {
	for _, c := range []struct {
		what                  string
		sent, overslept, rate int
	}{{"TCP messages", r.TCP.Messages, r.TCP.Overslept, r.Rates.Messages}, {"datagrams", r.UDP.Sent, r.UDP.Overslept, r.Rates.Datagrams},
		{"connections", r.Connects.Done + r.Connects.Failed, r.Connects.Overslept, r.Rates.Connects},
		{"forbidden frames", r.Denied.Sent, r.Denied.Overslept, r.Rates.Lies}} {
		want := int(float64(c.rate) * r.Duration.Seconds())
		if c.sent < want/2 {
			errs = append(errs, fmt.Errorf("inconclusive: sent %d of %d %s in %.1f s (%d a second were asked for); %d were not sent, because the test's environment had no free CPU",
				c.sent, want, c.what, r.Duration.Seconds(), c.rate, c.overslept))
		}
	}
	return errs
}

// String returns the report on a few lines.
func (r Report) String() string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1e3) }
	return fmt.Sprintf("in %.1f s, %d packets dropped by the machine's backlog\n"+
		"TCP: %d messages, %d lost, %d corrupted, %d reset, %d segments lost, %d sent again, longest round trip %s\n"+
		"UDP: %d datagrams, %d lost (%d refused), %d reordered, %d duplicated, %d behind a full receive buffer, longest gap %s\n"+
		"new connections: %d, %d failed (%d reset), %d segments sent again, longest %s\n"+
		"forbidden frames: %d, %d arrived\n"+
		"not sent without a free CPU: %d messages, %d datagrams, %d connections, %d frames", r.Duration.Seconds(), r.Backlog,
		r.TCP.Messages, r.TCP.Lost, r.TCP.Corrupted, r.TCP.Reset, r.TCP.LostSegments, r.TCP.Retransmitted, ms(r.TCP.LongestRoundTrip),
		r.UDP.Sent, r.UDP.Lost, r.UDP.Refused, r.UDP.Reordered, r.UDP.Duplicated, r.UDP.Overflowed, ms(r.UDP.LongestGap),
		r.Connects.Done, r.Connects.Failed, r.Connects.Reset, r.Connects.Retransmitted, ms(r.Connects.Longest),
		r.Denied.Sent, r.Denied.Arrived,
		r.TCP.Overslept, r.UDP.Overslept, r.Connects.Overslept, r.Denied.Overslept)
}

// backlogDrops returns the number of packets that full backlog queues dropped, over all CPUs (softnet_stat, second column, hexadecimal).
func backlogDrops() (sum uint64, err error) {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return 0, fmt.Errorf("softnet_stat: %q has no second column", line)
		}
		count, err := strconv.ParseUint(fields[1], 16, 64)
		if err != nil {
			return 0, fmt.Errorf("softnet_stat: %w", err)
		}
		sum += count
	}
	return sum, nil
}
