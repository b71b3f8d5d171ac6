package clusterload

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Churn deletes pods of the cluster and creates them again with another address until the context ends. Each event writes the pod's CiliumEndpoint and the
// EndpointSlice of the Service with the pod's number. Churn starts perSecond events a second as long as the API server keeps up, and counts completed events
// in done. It returns the error of the first failed request.
func (c Cluster) Churn(ctx context.Context, config *rest.Config, perSecond int, done *atomic.Int64) error {
	clients, err := newClients(config)
	if err != nil {
		return err
	}
	began := time.Now()
	var last atomic.Int64 // number of the latest started event, approximately
	err = c.each(ctx, math.MaxInt, func(ctx context.Context, event int) error {
		last.Store(int64(event))
		due := began.Add(time.Duration(event) * time.Second / time.Duration(perSecond))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(due)):
		}
		err := c.event(ctx, clients, event)
		if err == nil {
			done.Add(1)
		}
		return err
	})
	if ctx.Err() != nil { // requests that the end of the context interrupted are not failures
		return c.restore(context.WithoutCancel(ctx), clients, int(last.Load()))
	}
	return err
}

// restore creates the pods that are deleted after the event with a number: those of its block and of the neighbouring blocks.
func (c Cluster) restore(ctx context.Context, clients clients, event int) error {
	block := event / (2 * gap)
	for number := max(0, (block-1)*gap); number < (block+2)*gap; number++ {
		if err := c.createEndpoint(ctx, clients, number%c.Pods, number/c.Pods+1); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create a CiliumEndpoint again: %w", err)
		}
	}
	return nil
}

// gap is the number of events between the deletion and the creation of a pod.
const gap = 100

// event deletes a pod, or creates the pod that was deleted gap events before, depending on the event's number.
func (c Cluster) event(ctx context.Context, clients clients, n int) error {
	block, within := n/(2*gap), n%(2*gap)
	number := block*gap + within%gap
	pod, life := number%c.Pods, number/c.Pods+1
	object, slice := c.ciliumEndpoint(pod, life), c.slice(pod%max(1, c.Services), life)
	if within < gap {
		slice.Endpoints = nil
		err := clients.dynamic.Resource(CiliumEndpoints).Namespace(object.GetNamespace()).Delete(ctx, object.GetName(), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete a CiliumEndpoint: %w", err)
		}
	} else if err := c.createEndpoint(ctx, clients, pod, life); err != nil {
		return fmt.Errorf("create a CiliumEndpoint: %w", err)
	}
	if c.Services == 0 {
		return nil
	}
	if _, err := clients.typed.DiscoveryV1().EndpointSlices(slice.Namespace).Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update an EndpointSlice: %w", err)
	}
	return nil
}
