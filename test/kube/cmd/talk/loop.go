package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// count counts the results of the requests to one target, from the first answer on.
type count struct {
	Target       string
	Asked        int // including requests before the first answer
	Good, Failed int
	Reopened     int            // sockets on which the kernel reported an error
	Answers      map[string]int // by "SERVER PORT CLIENT"
	Errors       []string       // the last few
}

const keptErrors = 5

// loop prints the counts of all targets periodically as one line of JSON.
func loop(every, within time.Duration, targets []string) error {
	var lock sync.Mutex // guards counts
	counts := make([]count, len(targets))
	for i, target := range targets {
		c, err := newClient(target, within)
		if err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
		counts[i] = count{Target: target, Answers: map[string]int{}}
		go func() {
			for number := 1; ; number++ {
				began := time.Now()
				text, err := c.request(number)
				lock.Lock()
				counts[i].add(text, err, c, began)
				lock.Unlock()
				time.Sleep(every)
			}
		}()
	}
	for ; ; time.Sleep(500 * time.Millisecond) {
		lock.Lock()
		line, err := json.Marshal(counts)
		lock.Unlock()
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(append(line, '\n')); err != nil {
			return err
		}
	}
}

func (c *count) add(text string, err error, from *client, began time.Time) {
	c.Asked++
	if err == nil {
		c.Good++
		c.Answers[text]++
		c.Reopened = from.reopened
		return
	}
	if c.Good == 0 {
		return // the servers may not exist yet
	}
	c.Failed++
	c.Errors = append(c.Errors, fmt.Sprintf("%s, %s long: %v", began.Format("15:04:05.000"), time.Since(began).Round(time.Millisecond), err))
	c.Errors = c.Errors[max(0, len(c.Errors)-keptErrors):]
}
