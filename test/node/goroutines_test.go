package node_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

const metricsAddress = "127.0.0.1:9962"

// withMetrics makes the agent serve its metrics, including the number of goroutines.
func withMetrics() nodekit.Options {
	return nodekit.Options{AgentArgs: []string{"--prometheus-serve-addr", metricsAddress}}
}

var goroutinesLine = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

// goroutines returns the number of the agent's goroutines.
func goroutines(node *nodekit.Node) (int, error) {
	text, err := readMetrics(node)
	if err != nil {
		return 0, err
	}
	match := goroutinesLine.FindSubmatch(text)
	if match == nil {
		return 0, fmt.Errorf("the metrics do not say how many goroutines there are:\n%.500s", text)
	}
	return strconv.Atoi(string(match[1]))
}

// scrape returns every sample of the agent, by name and labels.
func scrape(node *nodekit.Node) (map[string]float64, error) {
	text, err := readMetrics(node)
	samples := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		if value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64); err == nil {
			samples[line[:at]] = value
		}
	}
	return samples, err
}

func readMetrics(node *nodekit.Node) (text []byte, err error) {
	err = node.Do(func() error {
		conn, err := net.DialTimeout("tcp", metricsAddress, 30*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		request, err := http.NewRequest(http.MethodGet, "http://"+metricsAddress+"/metrics", nil)
		if err != nil {
			return err
		}
		request.Close = true // a connection kept alive would be one more goroutine
		dial := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
		transport := &http.Transport{DisableKeepAlives: true, DialContext: dial}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err = io.ReadAll(response.Body)
		return err
	})
	return text, err
}

// eventuallyGoroutines waits until the agent has at most as many goroutines as before.
func eventuallyGoroutines(t *testing.T, node *nodekit.Node, before int) {
	t.Helper()
	eventually(t, func() error {
		after, err := goroutines(node)
		if err == nil && after > before {
			err = fmt.Errorf("the agent has %d goroutines, had %d before", after, before)
		}
		return err
	})
}

func countGoroutines(t *testing.T, node *nodekit.Node) int {
	t.Helper()
	count, err := goroutines(node)
	if err != nil {
		t.Fatal(err)
	}
	return count
}
