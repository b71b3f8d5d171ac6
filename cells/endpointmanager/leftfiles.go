package endpointmanager

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/heartbeat"
)

// leaveFile remembers a file that could not be removed with its endpoint, which would come back at the next start. Call it
// with mu held.
func (m *manager) leaveFile(id uint16) {
	m.leftFiles[id] = true
	select {
	case m.fileLeft <- struct{}{}:
	default: // it is told already
	}
}

// removeLeftFiles tries them again and says how many remain.
func (m *manager) removeLeftFiles() (remain int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.leftFiles {
		if err = m.files.Remove(fileName(id)); err == nil {
			delete(m.leftFiles, id)
		}
	}
	return len(m.leftFiles), err
}

func registerLeftFiles(jobs job.Group, m *manager) {
	heartbeat.Add(jobs, "remove-left-files", m.followLeftFiles)
}

// followLeftFiles removes files of endpoints that are gone, as soon as it can.
func (m *manager) followLeftFiles(ctx context.Context, health cell.Health) error {
	for {
		heartbeat.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-m.fileLeft:
		}
		heartbeat.Busy(ctx)
		backoff := job.ExponentialBackoff{Min: 100 * time.Millisecond, Max: time.Minute}
		for remain, err := m.removeLeftFiles(); remain > 0; remain, err = m.removeLeftFiles() {
			health.Degraded(fmt.Sprintf("the files of %d endpoints that are gone cannot be removed", remain), err)
			if heartbeat.Sleep(ctx, backoff.Wait()) != nil {
				return nil
			}
		}
		health.OK("every file belongs to an endpoint")
	}
}
