"""The quotas of users: concurrent requests, requests and tokens per period, exact over all data planes."""
