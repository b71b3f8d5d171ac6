package events

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
)

// TypeAgent is the type of records that the agent adds to the stream. They have the form of agent messages of Cilium.
const TypeAgent uint8 = 130

// noteMessage is Cilium's number of a message without a specific meaning.
const noteMessage = 1

// Note is information of the agent about the preceding [Drop].
type Note struct {
	Header
	Drop   uint64 // number of the row in the table drops
	Policy string // the rule that denied the packet, or the nearest miss
}

// notice is the form on the wire, after the byte of the type. The names of its fields are part of the format.
type notice struct {
	Type uint32
	Text string // JSON
}

// noteText is the JSON of a notice.
type noteText struct {
	Endpoint uint16 `json:"endpoint"`
	Drop     uint64 `json:"drop"`
	Policy   string `json:"policy"`
}

// Encode returns the record of a note.
func (n *Note) Encode() ([]byte, error) {
	text, err := json.Marshal(noteText{n.Endpoint, n.Drop, n.Policy})
	if err != nil {
		return nil, err
	}
	out := bytes.NewBuffer([]byte{TypeAgent})
	err = gob.NewEncoder(out).Encode(notice{noteMessage, string(text)})
	return out.Bytes(), err
}

func decodeNote(b []byte) (Event, error) {
	var n notice
	if err := gob.NewDecoder(bytes.NewReader(b[1:])).Decode(&n); err != nil {
		return nil, fmt.Errorf("decode message of the agent: %w: %w", ErrUnknown, err)
	}
	var text noteText
	if err := json.Unmarshal([]byte(n.Text), &text); err != nil || n.Type != noteMessage {
		return nil, fmt.Errorf("decode message of the agent of type %d: %w", n.Type, ErrUnknown)
	}
	return &Note{Header: Header{Endpoint: text.Endpoint}, Drop: text.Drop, Policy: text.Policy}, nil
}
