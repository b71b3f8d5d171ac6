package kubeapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/printable"
)

const (
	longestMessage   = 1000 // bytes of an Event's message; the API server allows 1,024
	longestEventName = 200  // bytes of the object's name within the Event's name, which may have 253
	// clusterEvents is the namespace of Events about cluster-scoped objects.
	clusterEvents = metav1.NamespaceDefault
)

// NewWarning returns an Event about an object. Its name is derived from the object's UID, the reason and the stored message. So there is only one such
// Event until the API server deletes it, whichever replica creates it.
func NewWarning(about corev1.ObjectReference, reason, message string, now time.Time) *corev1.Event {
	message = stored(message)
	return newWarning(about, reason, message, message, now)
}

// NewNodeWarning returns an Event about an object that may have the same problem on many nodes. Its name is derived from the object's UID and the reason alone, so
// of all nodes the first one creates it, with its own message.
func NewNodeWarning(about corev1.ObjectReference, node, reason, message string, now time.Time) *corev1.Event {
	e := newWarning(about, reason, stored("Node "+node+", and maybe others: "+message), "", now)
	e.Source.Host, e.ReportingController, e.ReportingInstance = node, "waggle.io/agent", node
	return e
}

// stored returns a message as Events store it.
func stored(message string) string { return printable.Short(printable.Text(message), longestMessage) }

// newWarning returns an Event whose name is derived from the object's UID, the reason and a key.
func newWarning(about corev1.ObjectReference, reason, message, key string, now time.Time) *corev1.Event {
	namespace := about.Namespace
	if namespace == "" {
		namespace = clusterEvents
	}
	name := strings.TrimRight(about.Name[:min(len(about.Name), longestEventName)], ".-") // a dot follows, which is invalid after these characters
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", about.UID, reason, key))
	at := metav1.NewTime(now)
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: about,
		Reason:         reason, Message: message, Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: "waggle"}, ReportingController: "waggle.io/cluster",
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
}

// PolicyReference refers to a policy object; kind is NetworkPolicy, CiliumNetworkPolicy or CiliumClusterwideNetworkPolicy.
func PolicyReference(kind, namespace, name, uid string) corev1.ObjectReference {
	version := ciliumv2.GroupVersion
	if kind == "NetworkPolicy" {
		version = NetworkPolicies.GroupVersion
	}
	return corev1.ObjectReference{APIVersion: version.String(), Kind: kind, Namespace: namespace, Name: name, UID: types.UID(uid)}
}

// Emit creates an Event. It is not an error if the Event exists or its namespace is being deleted.
func (c *Client) Emit(ctx context.Context, event *corev1.Event) error {
	err := c.Create(ctx, Events, event.Namespace, event, nil)
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	}
	return err
}
