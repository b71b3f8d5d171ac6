package kubeapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
)

// Client sends requests to the API server. A nil *Client means that Kubernetes is off; a cell checks for nil once, when it registers its jobs. It is
// safe for concurrent use.
type Client struct {
	clients map[clientKey]rest.Interface
	codec   runtime.ParameterCodec
	servers *servers
	http    *http.Client
	cluster string // see [Client.ClusterID]
	base    string // scheme, host and path of all requests; [failover] replaces the host
}

type clientKey struct {
	gv    schema.GroupVersion
	proto bool
}

// requestTimeout limits every request except watches, starting after the rate limiter. The largest lists take seconds.
const requestTimeout = 30 * time.Second

// New returns a client without connecting. config holds the server, the credentials and the request rate, and connection the timeouts. Without addresses it
// uses config.Host; otherwise see [ParseServers].
func New(config *rest.Config, connection Connection, addresses ...string) (*Client, error) {
	config = rest.CopyConfig(config)
	if len(addresses) == 0 {
		addresses = []string{config.Host}
	}
	c := &Client{clients: map[clientKey]rest.Interface{}}
	if err := c.connect(config, connection, addresses); err != nil {
		return nil, fmt.Errorf("prepare the connection to the API server: %w", err)
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c.codec = runtime.NewParameterCodec(scheme)
	codecs := serializer.NewCodecFactory(scheme)
	limitRate(config)
	for _, r := range Resources() {
		key := clientKey{r.GroupVersion, r.Proto}
		if c.clients[key] != nil {
			continue
		}
		client, err := rest.RESTClientForConfigAndClient(configFor(r, config, codecs), c.http)
		if err != nil {
			return nil, fmt.Errorf("prepare a client for %s: %w", r.GroupVersion, err)
		}
		c.clients[key] = client
	}
	return c, nil
}

// connect prepares addresses, transport and credentials. Afterwards config holds only the settings that the clients still need.
func (c *Client) connect(config *rest.Config, connection Connection, addresses []string) error {
	parsed, err := ParseServers(addresses)
	switch {
	case err != nil:
		return err
	case len(parsed) == 0:
		return errors.New("no address is known")
	case config.ExecProvider != nil || config.AuthProvider != nil:
		return errors.New("the kubeconfig uses a program or a plugin for credentials, which an agent does not run: " +
			"use a token or a client certificate")
	}
	var urls []*url.URL
	for _, address := range parsed {
		u, err := url.Parse(address)
		if err != nil {
			return err
		}
		urls = append(urls, u)
	}
	direct, err := newReloading(config, connection)
	if err != nil {
		return err
	}
	c.servers, c.base, config.Host = newServers(urls), parsed[0], parsed[0]
	c.cluster = clusterID(config.CAData, direct.ca, parsed)
	if config.BearerTokenFile != "" { // read every minute, as client-go does, and also after each 401
		config.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(config.BearerTokenFile)))
		config.BearerToken, config.BearerTokenFile = "", ""
	}
	wrapped, err := rest.HTTPWrappersForConfig(config, failover{c.servers, direct})
	if err != nil {
		return fmt.Errorf("prepare the credentials: %w", err)
	}
	c.http = &http.Client{Transport: wrapped, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return nil
}

// ClusterID identifies the cluster without a request: it is derived from the certificate authority of the servers, or from their addresses without one.
// It changes with the authority.
func (c *Client) ClusterID() string { return c.cluster }

func clusterID(caData, caFile []byte, addresses []string) string {
	ca := caData
	if len(ca) == 0 {
		ca = caFile
	}
	if len(ca) == 0 {
		ca = []byte(strings.Join(slices.Sorted(slices.Values(addresses)), " "))
	}
	sum := sha256.Sum256(ca)
	return hex.EncodeToString(sum[:16])
}

// limitRate makes all clients share one rate limit; 0 or less means none. Watches do not count.
func limitRate(config *rest.Config) {
	if config.QPS <= 0 {
		config.QPS = -1 // 0 would mean client-go's default, for each client
		return
	}
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
}

func configFor(r Resource, config *rest.Config, codecs serializer.CodecFactory) *rest.Config {
	one, gv := rest.CopyConfig(config), r.GroupVersion
	one.GroupVersion, one.APIPath = &gv, "/apis"
	if gv.Group == "" {
		one.APIPath = "/api"
	}
	one.NegotiatedSerializer = codecs.WithoutConversion()
	one.ContentType = runtime.ContentTypeJSON
	if r.Proto {
		one.ContentType = runtime.ContentTypeProtobuf
		one.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	return one
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	metav1.AddToGroupVersion(scheme, CustomResourceDefinitions.GroupVersion)
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme,
		coordinationv1.AddToScheme, ciliumv2.AddToScheme, metav1.AddMetaToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register types: %w", err)
		}
	}
	return scheme, nil
}

// request starts building a request for r. Namespace and name may be empty.
func (c *Client) request(r Resource, namespace, name string, begin func(rest.Interface) *rest.Request) *rest.Request {
	request := begin(c.clients[clientKey{r.GroupVersion, r.Proto}]).
		NamespaceIfScoped(namespace, namespace != "").Resource(r.Plural).Timeout(requestTimeout)
	if name != "" {
		request = request.Name(name)
	}
	return request
}

// metadataOnly requests only the metadata, for objects whose types are not defined in the agent or whose other fields it does not need.
func metadataOnly(request *rest.Request, r Resource, kind string) *rest.Request {
	if !r.HasOnlyMetadata() {
		return request
	}
	as := ";as=" + kind + ";g=meta.k8s.io;v=v1"
	if !r.Proto {
		return request.SetHeader("Accept", runtime.ContentTypeJSON+as)
	}
	return request.SetHeader("Accept", runtime.ContentTypeProtobuf+as+","+runtime.ContentTypeJSON+as)
}

// Get reads one object. Namespace is empty for cluster-scoped resources.
func (c *Client) Get(ctx context.Context, r Resource, namespace, name string, into runtime.Object) error {
	request := metadataOnly(c.request(r, namespace, name, rest.Interface.Get), r, "PartialObjectMetadata")
	return c.describe("get", r, namespace, name, request.Do(ctx).Into(into))
}

// List reads all objects that match options; an empty namespace means all namespaces.
func (c *Client) List(ctx context.Context, r Resource, namespace string, options metav1.ListOptions, into runtime.Object) error {
	request := metadataOnly(c.request(r, namespace, "", rest.Interface.Get), r, "PartialObjectMetadataList")
	return c.describe("list", r, namespace, "", request.VersionedParams(&options, c.codec).Do(ctx).Into(into))
}

// Create creates object and stores the server's version of it in into, unless that is nil.
func (c *Client) Create(ctx context.Context, r Resource, namespace string, object, into runtime.Object) error {
	request := c.request(r, namespace, "", rest.Interface.Post)
	return c.describe("create", r, namespace, nameOf(object), result(request.Body(object).Do(ctx), into))
}

// Update replaces object; its resourceVersion must be the current one, or the error satisfies errors.IsConflict.
func (c *Client) Update(ctx context.Context, r Resource, namespace string, object, into runtime.Object, subresources ...string) error {
	name := nameOf(object)
	request := c.request(r, namespace, name, rest.Interface.Put).SubResource(subresources...)
	return c.describe("update", r, namespace, name, result(request.Body(object).Do(ctx), into))
}

// Patch changes an object, or one of its subresources such as "status".
func (c *Client) Patch(ctx context.Context, r Resource, namespace, name string, kind types.PatchType, data []byte,
	into runtime.Object, subresources ...string) error {
	request := c.request(r, namespace, name, func(client rest.Interface) *rest.Request { return client.Patch(kind) }).
		SubResource(subresources...)
	return c.describe("patch", r, namespace, name, result(request.Body(data).Do(ctx), into))
}

// Delete removes an object, but only if it meets the preconditions, if there are any.
func (c *Client) Delete(ctx context.Context, r Resource, namespace, name string, preconditions *metav1.Preconditions) error {
	options := &metav1.DeleteOptions{Preconditions: preconditions}
	request := c.request(r, namespace, name, rest.Interface.Delete)
	return c.describe("delete", r, namespace, name, request.Body(options).Do(ctx).Error())
}

// Watch returns the changes after options.ResourceVersion. It has no deadline except the one in options.
func (c *Client) Watch(ctx context.Context, r Resource, namespace string, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	request := metadataOnly(c.request(r, namespace, "", rest.Interface.Get).Timeout(0), r, "PartialObjectMetadata")
	w, err := request.VersionedParams(&options, c.codec).Watch(ctx)
	return w, c.describe("watch", r, namespace, "", err)
}

// Stream is [Client.Watch] without a decoder: the body holds the events as the server writes them, a sequence of JSON objects. r must be a resource
// without protobuf.
func (c *Client) Stream(ctx context.Context, r Resource, namespace string, options metav1.ListOptions) (io.ReadCloser, error) {
	options.Watch = true
	request := c.request(r, namespace, "", rest.Interface.Get).Timeout(0).Throttle(flowcontrol.NewFakeAlwaysRateLimiter()) // as Watch does
	body, err := request.VersionedParams(&options, c.codec).Stream(ctx)
	return body, c.describe("watch", r, namespace, "", err)
}

// ListWatch returns the source for a cache.Reflector. tweak may restrict the options, for instance with a field selector; it may be nil.
func (c *Client) ListWatch(r Resource, namespace string, tweak func(*metav1.ListOptions)) *cache.ListWatch {
	narrow := func(options metav1.ListOptions) metav1.ListOptions {
		if tweak != nil {
			tweak(&options)
		}
		return options
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list := r.NewList()
			return list, c.List(ctx, r, namespace, narrow(options), list)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, r, namespace, narrow(options))
		},
	}
}

func result(r rest.Result, into runtime.Object) error {
	if into == nil {
		return r.Error()
	}
	return r.Into(into)
}

func nameOf(object runtime.Object) string {
	if o, ok := object.(metav1.Object); ok {
		return o.GetName()
	}
	return ""
}
