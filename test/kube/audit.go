package kube

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
)

// AuditEvent is a request that the API server has answered.
type AuditEvent struct {
	Verb       string
	RequestURI string
	UserAgent  string
	User       struct{ Username string }
	ObjectRef  struct{ APIGroup, Resource, Subresource, Namespace, Name string }

	ResponseStatus struct{ Code int }
}

// AuditLog returns the requests so far for which keep returns true.
func (c *Cluster) AuditLog(t testing.TB, keep func(AuditEvent) bool) (events []AuditEvent) {
	t.Helper()
	file, err := os.Open(c.AuditLogPath())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewReader(file); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return events // an incomplete last line is still being written
		}
		var e AuditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("audit log: %v: %s", err, line)
		}
		if keep(e) {
			events = append(events, e)
		}
	}
}
