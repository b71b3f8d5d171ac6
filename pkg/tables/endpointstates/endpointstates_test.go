package endpointstates

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func full() *EndpointState {
	return &EndpointState{ID: 7, Attachment: "abc:eth0", State: Ready, Identity: 5, Revision: 1, Error: "e", Waiting: "w", Notice: "n",
		Log: []LogEntry{{Time: time.Unix(1, 0).UTC(), Failed: true, State: Ready, Message: "m"}}}
}

func TestEqual_ComparesEveryFieldExceptLog(t *testing.T) {
	t.Parallel()
	for i := range reflect.TypeFor[EndpointState]().NumField() {
		name := reflect.TypeFor[EndpointState]().Field(i).Name
		changed := full()
		field := reflect.ValueOf(changed).Elem().Field(i)
		require.False(t, field.IsZero(), "full must set %s", name)
		field.SetZero()
		require.Equal(t, name == "Log", full().Equal(changed), name)
	}
}

func TestRow_SurvivesJSONAndYAML(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(full())
	require.NoError(t, err)
	out := new(EndpointState)
	require.NoError(t, json.Unmarshal(text, out))
	require.Equal(t, full(), out)
	text, err = yaml.Marshal(full())
	require.NoError(t, err)
	out = new(EndpointState)
	require.NoError(t, yaml.Unmarshal(text, out))
	require.Equal(t, full(), out)
}

func TestWithLog_IsBoundedAndKeepsOriginal(t *testing.T) {
	t.Parallel()
	row := &EndpointState{}
	for i := range 2 * MaxLog {
		before := len(row.Log)
		next := row.WithLog(LogEntry{Time: time.Unix(int64(i), 0)})
		require.Len(t, row.Log, before)
		row = next
	}
	require.Len(t, row.Log, MaxLog)
	require.Equal(t, time.Unix(2*MaxLog-1, 0), row.Log[MaxLog-1].Time)
	require.Equal(t, time.Unix(MaxLog, 0), row.Log[0].Time)
}
